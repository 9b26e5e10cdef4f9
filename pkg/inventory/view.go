package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	toolscache "k8s.io/client-go/tools/cache"
)

// errNotRead is the answer of what has not read anything yet.
var errNotRead = errors.New("not read yet")

// view is a copy of one resource's objects that follows an API server. When it can't, because the resource or the right
// to it is missing or the server is away, it says so instead of answering from what it once read: what has been deleted
// since must not be believed. It tries again by itself.
type view struct {
	client dynamic.Interface
	// find returns the resource. It is asked anew after every failure, as a CRD may come and go.
	find      func() (schema.GroupVersionResource, error)
	namespace string
	// typed, if set, is read in place of what client, find and namespace say.
	typed  *upstream
	narrow func(*metav1.ListOptions)
	// transform makes of an object what is kept. It must not fail. It is for what is not typed.
	transform func(*unstructured.Unstructured) metav1.Object
	indexers  toolscache.Indexers
	// changed is called after an object has, with what it was and is; with neither when anything may have changed.
	changed func(old, new metav1.Object)
	// failed, if set, is called with why nothing can be read any more.
	failed func(error)
	retry  time.Duration // the longest wait between attempts
	// silence is how long watches may bring nothing; zero is longestSilence.
	silence time.Duration
	log     logr.Logger

	mu    sync.RWMutex
	store toolscache.Indexer // nil if err is set
	err   error
}

// upstream reads one resource.
type upstream struct {
	resource schema.GroupVersionResource
	object   runtime.Object // of the kind that is read
	trim     func(any)      // drops from an object what is not kept
	list     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch    func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// open returns what is to be read.
func (v *view) open() (*upstream, error) {
	if v.typed != nil {
		return v.typed, nil
	}
	resource, err := v.find()
	if err != nil {
		return nil, err
	}
	objects := v.client.Resource(resource).Namespace(v.namespace)
	return &upstream{
		resource: resource, object: &unstructured.Unstructured{}, watch: objects.Watch,
		list: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, options)
		},
	}, nil
}

// read returns the objects, or why they are not known.
func (v *view) read() (toolscache.Indexer, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.store, v.err
}

func (v *view) set(store toolscache.Indexer, err error) {
	v.mu.Lock()
	last := v.err
	v.store, v.err = store, err
	v.mu.Unlock()
	if err == nil || errors.Is(err, context.Canceled) || last != nil && last.Error() == err.Error() {
		return
	}
	v.log.Info("Inventory is not available", "reason", err.Error())
	if v.failed != nil {
		v.failed(err)
	}
}

// run follows until ctx ends.
func (v *view) run(ctx context.Context) {
	const first = time.Second
	wait := min(first, v.retry)
	for ctx.Err() == nil {
		synced, err := v.follow(ctx)
		v.set(nil, err)
		if synced {
			wait = min(first, v.retry)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		wait = min(2*wait, v.retry)
	}
}

// follow returns when the first list or watch fails, and whether there has been a list before.
func (v *view) follow(ctx context.Context) (synced bool, err error) {
	from, err := v.open()
	if err != nil {
		return false, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer fail(nil)
	stream := newStream(ctx, from, cmp.Or(v.silence, longestSilence), fail)
	defer stream.end()
	informer := toolscache.NewSharedIndexInformer(plainLists{stream.listWatch(v.narrow)}, from.object, 0, v.indexers)
	registration, err := informer.AddEventHandler(v.handler())
	if err := errors.Join(err,
		informer.SetTransform(func(obj any) (any, error) { return v.keep(from, obj), nil }),
		// What fails ends in v.err, and is told from there.
		informer.SetWatchErrorHandlerWithContext(func(context.Context, *toolscache.Reflector, error) {}),
	); err != nil {
		return false, err
	}
	running.Go(func() { informer.RunWithContext(ctx) })
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return false, context.Cause(ctx)
	}
	v.set(informer.GetIndexer(), nil)
	v.log.Info("Inventory is read", "resource", from.resource.GroupResource().String(), "version", from.resource.Version)
	v.changed(nil, nil)
	<-ctx.Done()
	// At once: the informer may take its time to end.
	v.set(nil, context.Cause(ctx))
	return true, context.Cause(ctx)
}

// keep may be called with what it once made.
func (v *view) keep(from *upstream, obj any) any {
	if from.trim != nil {
		from.trim(obj)
		return obj
	}
	if raw, ok := obj.(*unstructured.Unstructured); ok && v.transform != nil {
		return v.transform(raw)
	}
	return obj
}

func (v *view) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if !initial {
				v.changed(nil, obj.(metav1.Object))
			}
		},
		UpdateFunc: func(old, obj any) { v.changed(old.(metav1.Object), obj.(metav1.Object)) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			v.changed(obj.(metav1.Object), nil)
		},
	}
}

func explain(verb string, resource schema.GroupVersionResource, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return notInstalled(resource.GroupResource().String() + " in version " + resource.Version)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("grant list and watch on %s%s: %w", resource.GroupResource(), grantedBy(resource.GroupResource()), err)
	}
	return fmt.Errorf("%s %s: %w", verb, resource.GroupResource(), err)
}

// grantedBy names the manifest whose role lets the manager read a resource, if one is shipped.
func grantedBy(resource schema.GroupResource) string {
	switch resource.String() {
	case "nodes":
		return " (config/kubelet-serving or config/node-identity)"
	case "services", "endpointslices.discovery.k8s.io":
		return " (config/kubelet-serving)"
	case "leases.coordination.k8s.io":
		return " (config/node-identity)"
	case "machines.cluster.x-k8s.io":
		return " (config/inventory-cluster-api)"
	case "machines.machine.openshift.io":
		return " (config/inventory-openshift)"
	}
	return ""
}

func notInstalled(what string) error { return fmt.Errorf("%s is not installed yet", what) }
