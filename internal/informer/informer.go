// Package informer watches one named object, or all objects of one kind, and answers only while it can't have missed
// a change.
//
// An informer of client-go continues to answer while its API server is unreachable, or after the right to watch was
// withdrawn. Its copy then has an unknown age and still holds deleted objects. That suits a work queue. It does not
// suit the decision whether a node may have a certificate. An Informer drops its copy instead, and Err says why:
//
//   - a list or a watch has failed: a CRD is not installed, a right is missing, the API server is unreachable;
//   - there has been no watch for ten seconds, or a watch has not opened within 90 seconds;
//   - watches have delivered neither an event nor a bookmark for three minutes, even if they were opened again.
//
// It retries by itself, after a second at first and after ten seconds at most. A caller that continues with the last
// copy, as the signer does with its CA, keeps that copy in OnSync and OnChange.
//
// FromCache is for the informers of the manager's cache. Controllers share these informers, and work again when the
// API server is reachable again, so the informers may keep their copy.
package informer

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// firstRetry and lastRetry bound the pause between attempts.
const firstRetry, lastRetry = time.Second, 10 * time.Second

// ErrNotRead is the error of an Informer that has not tried to read anything yet.
var ErrNotRead = errors.New("not read yet")

// Informer holds a copy of the objects that it watches. T is the type of the copy of an object. Set the fields before
// Start.
type Informer[T metav1.Object] struct {
	// Resource is the resource to watch. If Find is set, it returns the resource before each attempt, because a CRD may
	// come and go.
	Resource Resource
	Find     func() (Resource, error)
	// Namespace, Name and Selector, a label selector, select the objects. To watch one object by its name, a role for
	// that name is enough.
	Namespace, Name, Selector string

	// Convert, if set, returns the copy that is kept of an object. It is called for one object at a time.
	Convert func(runtime.Object) T
	// Indexers return the keys by which ByIndex finds an object, by the name of the index.
	Indexers map[string]func(T) []string

	// OnSync, if set, is called after all objects have been read: at the start, and after each failure.
	OnSync func()
	// OnChange, if set, is called after an object has changed since OnSync. before is zero for a new object, and
	// after is zero for a deleted object.
	OnChange func(before, after T)
	// OnFailure, if set, is called with each new reason why nothing can be read.
	OnFailure func(error)

	// GrantedBy names the manifest with the role to read the resource, for messages.
	GrantedBy string
	// Retry is the longest pause between attempts. Zero means ten seconds.
	Retry time.Duration
	// Silence is how long watches may deliver neither an event nor a bookmark. Zero means three minutes.
	Silence time.Duration
	// Log has values that name the watched objects.
	Log logr.Logger

	mu    sync.RWMutex
	store toolscache.Indexer // nil while there is no copy
	err   error              // why there is no copy; nil before the first attempt
}

// NeedLeaderElection returns false: a standby reads too, so that it can answer as soon as it becomes the leader.
func (*Informer[T]) NeedLeaderElection() bool { return false }

// Start watches until ctx ends.
func (i *Informer[T]) Start(ctx context.Context) error {
	longest := cmp.Or(i.Retry, lastRetry)
	pause := min(firstRetry, longest)
	for ctx.Err() == nil {
		synced, err := i.watch(ctx)
		i.set(nil, err)
		if synced {
			pause = min(firstRetry, longest)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, longest)
	}
	return nil
}

// watch runs until the first list or watch fails. It reports whether all objects had been read before.
func (i *Informer[T]) watch(ctx context.Context) (synced bool, err error) {
	resource := i.Resource
	if i.Find != nil {
		if resource, err = i.Find(); err != nil {
			return false, err
		}
	}
	ctx, fail := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer fail(nil)
	stream := &stream{
		resource: resource, namespace: i.Namespace, name: i.Name, selector: i.Selector, grantedBy: i.GrantedBy,
		ctx: ctx, fail: fail, silence: cmp.Or(i.Silence, longestSilence),
	}
	defer stream.end()
	indexers := toolscache.Indexers{}
	for name, keys := range i.Indexers {
		indexers[name] = func(obj any) ([]string, error) { return keys(obj.(T)), nil }
	}
	informer := toolscache.NewSharedIndexInformer(plainLists{stream.listWatch()}, resource.object, 0, indexers)
	registration, err := informer.AddEventHandler(i.handler())
	err = errors.Join(err,
		informer.SetTransform(func(obj any) (any, error) {
			// A transformer may be called with its own result.
			if object, ok := obj.(runtime.Object); ok && i.Convert != nil {
				return i.Convert(object), nil
			}
			return obj, nil
		}),
		// Each failure ends this call, which returns the error.
		informer.SetWatchErrorHandlerWithContext(func(context.Context, *toolscache.Reflector, error) {}),
	)
	if err != nil {
		return false, err
	}
	running.Go(func() { informer.RunWithContext(ctx) })
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return false, context.Cause(ctx)
	}
	i.set(informer.GetIndexer(), nil)
	i.Log.Info("Resource is read", "version", resource.Version)
	if i.OnSync != nil {
		i.OnSync()
	}
	<-ctx.Done()
	// At once, because the informer may take time to end.
	i.set(nil, context.Cause(ctx))
	return true, context.Cause(ctx)
}

// handler returns an event handler that calls OnChange for each change after the first list. OnSync reports the first
// list.
func (i *Informer[T]) handler() toolscache.ResourceEventHandler {
	var none T
	changed := func(before, after T) {
		if i.OnChange != nil {
			i.OnChange(before, after)
		}
	}
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if !initial {
				changed(none, obj.(T))
			}
		},
		UpdateFunc: func(before, after any) { changed(before.(T), after.(T)) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			changed(obj.(T), none)
		},
	}
}

// set replaces the copy, or drops it because of err. It reports each new err.
func (i *Informer[T]) set(store toolscache.Indexer, err error) {
	i.mu.Lock()
	last := i.err
	i.store, i.err = store, err
	i.mu.Unlock()
	if err == nil || errors.Is(err, context.Canceled) || last != nil && last.Error() == err.Error() {
		return
	}
	i.Log.Info("Resource is not available", "reason", err.Error())
	if i.OnFailure != nil {
		i.OnFailure(err)
	}
}

func (i *Informer[T]) read() (toolscache.Indexer, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.store == nil {
		return nil, cmp.Or(i.err, ErrNotRead)
	}
	return i.store, nil
}

// Err returns why there is no copy to answer from, or nil.
func (i *Informer[T]) Err() error {
	_, err := i.read()
	return err
}

// Get returns an object, and whether it exists. Callers must not change the object, because the Informer holds it.
// The same applies to the results of List and ByIndex.
func (i *Informer[T]) Get(namespace, name string) (obj T, found bool, err error) {
	store, err := i.read()
	if err != nil {
		return obj, false, err
	}
	kept, found, err := store.GetByKey(toolscache.NewObjectName(namespace, name).String())
	if !found || err != nil {
		return obj, false, err
	}
	return kept.(T), true, nil
}

// List returns all objects, in any order.
func (i *Informer[T]) List() ([]T, error) {
	store, err := i.read()
	if err != nil {
		return nil, err
	}
	return typed[T](store.List()), nil
}

// ByIndex returns the objects for which an indexer returned key, in any order.
func (i *Informer[T]) ByIndex(index, key string) ([]T, error) {
	store, err := i.read()
	if err != nil {
		return nil, err
	}
	found, err := store.ByIndex(index, key)
	return typed[T](found), err
}

// KeysByIndex is ByIndex for callers that need only the names (namespace/name) of the objects.
func (i *Informer[T]) KeysByIndex(index, key string) ([]string, error) {
	store, err := i.read()
	if err != nil {
		return nil, err
	}
	return store.IndexKeys(index, key)
}

func typed[T any](objects []any) []T {
	all := make([]T, len(objects))
	for n, obj := range objects {
		all[n] = obj.(T)
	}
	return all
}

// Fake sets the objects that i returns, or its error, as if i had read them. It is for tests.
func (i *Informer[T]) Fake(err error, objects ...T) {
	if err != nil {
		i.set(nil, err)
		return
	}
	indexers := toolscache.Indexers{}
	for name, keys := range i.Indexers {
		indexers[name] = func(obj any) ([]string, error) { return keys(obj.(T)), nil }
	}
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indexers)
	for _, obj := range objects {
		_ = store.Add(obj) // its key is that of an object's metadata
	}
	i.set(store, nil)
}

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
