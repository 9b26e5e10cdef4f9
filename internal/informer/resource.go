package informer

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Resource lists and watches one resource of an API server. Create it with Of.
type Resource struct {
	schema.GroupVersionResource
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// API reads the objects of one resource, of one namespace or of all. All clients of client-go implement it.
type API[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Of returns the Resource that api reads.
func Of[L runtime.Object](resource schema.GroupVersionResource, api API[L]) Resource {
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return api.List(ctx, options)
	}
	return Resource{resource, list, api.Watch}
}

// ConfigMaps returns the resource of the ConfigMaps in namespace.
func ConfigMaps(config *rest.Config, namespace string) (Resource, error) {
	api, err := corev1client.NewForConfig(config)
	if err != nil {
		return Resource{}, fmt.Errorf("read ConfigMaps: %w", err)
	}
	return Of(corev1.SchemeGroupVersion.WithResource("configmaps"), api.ConfigMaps(namespace)), nil
}

// FromCache returns the informer for the kind of obj from the manager's cache. The informer may not have synced yet.
// FromCache retries until it succeeds: discovery fails when a connection is reset, and while the kind is not
// installed. It returns an error only when ctx ends. It calls failed, which may be nil, with each earlier error.
func FromCache(
	ctx context.Context, from cache.Informers, obj client.Object, log logr.Logger, failed func(error),
) (found cache.Informer, err error) {
	last := ""
	err = pauses(lastRetry).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		var err error
		if found, err = from.GetInformer(ctx, obj, cache.BlockUntilSynced(false)); err == nil || ctx.Err() != nil {
			return true, context.Cause(ctx)
		}
		if failed != nil {
			failed(err)
		}
		if err.Error() != last {
			last = err.Error()
			log.Error(err, "Waiting for a resource that can't be watched yet")
		}
		return false, nil
	})
	return found, err
}
