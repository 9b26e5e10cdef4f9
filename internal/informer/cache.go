package informer

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FromCache returns the informer for the kind of obj from the manager's cache. The informer may not have synced yet.
// FromCache retries until it succeeds: discovery fails when a connection is reset, and while the kind is not
// installed. It returns an error only when ctx ends. It calls failed, which may be nil, with each earlier error.
func FromCache(
	ctx context.Context, from cache.Informers, obj client.Object, log logr.Logger, failed func(error),
) (cache.Informer, error) {
	last := ""
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		informer, err := from.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil:
			return informer, nil
		}
		if failed != nil {
			failed(err)
		}
		if err.Error() != last {
			last = err.Error()
			log.Error(err, "Waiting for a resource that can't be watched yet")
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
