// Package informers makes informers of a cache although an API server may be away, or a kind may not be installed yet.
package informers

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// firstRetry and lastRetry bound the pause between attempts. Each attempt is a discovery.
const firstRetry, lastRetry = time.Second, 10 * time.Second

// Mapper returns a mapper that knows one kind of objects in namespaces. A cache of nothing else needs no discovery to be made.
func Mapper(kind schema.GroupVersionKind) meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion()})
	mapper.Add(kind, meta.RESTScopeNamespace)
	return mapper
}

// Get returns the informer for obj's kind, which may not have synced yet. It tries until it can: the discovery before
// fails when a connection is reset, and while the kind is not installed. It fails only when ctx ends. failed is called
// with each error, and with nil in the end.
func Get(ctx context.Context, from cache.Informers, obj client.Object, log logr.Logger, failed func(error)) (cache.Informer, error) {
	var informer cache.Informer
	err := Try(ctx, log, failed, func() (err error) {
		informer, err = from.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		return err
	})
	return informer, err
}

// Try calls attempt until it succeeds, or fails when ctx ends. failed is called with each error, and with nil in the
// end.
func Try(ctx context.Context, log logr.Logger, failed func(error), attempt func() error) error {
	last := ""
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := attempt()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		failed(err)
		if err == nil {
			return nil
		}
		if err.Error() != last {
			last = err.Error()
			log.Error(err, "Waiting for a resource that can't be watched yet")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
