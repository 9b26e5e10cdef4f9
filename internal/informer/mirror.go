package informer

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// mirror connects a Reflector of client-go with an Informer, for one attempt. It lists and watches for the
// Reflector, and is the store that the Reflector fills.
type mirror[T metav1.Object] struct {
	informer *Informer[T]
	resource Resource
	store    toolscache.Indexer // nil before the first list
}

// failure ends an attempt. It has no Unwrap method, because a Reflector retries some errors without a message.
type failure struct{ cause error }

func (f failure) Error() string { return f.cause.Error() }

// plainLists lists before it watches. Without it, a Reflector first tries a list that is streamed by a watch.
type plainLists struct{ *toolscache.ListWatch }

// IsWatchListSemanticsUnSupported implements an interface of client-go's package watchlist.
func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

// list reads one page.
func (r *mirror[T]) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	r.narrow(&options)
	if options.ResourceVersion == "0" {
		options.ResourceVersion = "" // the newest version: an old one may hold objects that were deleted since
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := r.resource.list(ctx, r.informer.Namespace, options)
	if err != nil {
		return nil, r.explain("list", err)
	}
	return list, nil
}

// watch opens a watch.
func (r *mirror[T]) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	r.narrow(&options)
	watcher, err := r.resource.watch(ctx, r.informer.Namespace, options)
	if err != nil {
		return nil, r.explain("watch", err)
	}
	r.informer.works()
	r.informer.reported = ""
	return watcher, nil
}

// narrow selects the objects of the Informer.
func (r *mirror[T]) narrow(options *metav1.ListOptions) {
	options.LabelSelector = r.informer.Selector
	if r.informer.Name != "" {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, r.informer.Name).String()
	}
}

// explain returns a failure that says what failed and what to do.
func (r *mirror[T]) explain(verb string, err error) failure {
	resource := r.resource.GroupResource().String()
	switch {
	case apierrors.IsNotFound(err):
		return failure{fmt.Errorf("%s in version %s is not installed yet: %w", resource, r.resource.Version, err)}
	case !apierrors.IsForbidden(err):
		return failure{fmt.Errorf("%s %s: %w", verb, resource, err)}
	case r.informer.GrantedBy != "":
		resource += " (" + r.informer.GrantedBy + ")"
	}
	return failure{fmt.Errorf("grant list and watch on %s: %w", resource, err)}
}

// copyOf returns the object to keep of obj.
func (r *mirror[T]) copyOf(obj any) T {
	if r.informer.Convert != nil {
		return r.informer.Convert(obj.(runtime.Object))
	}
	return obj.(T)
}

func (r *mirror[T]) changed(before, after T) {
	if r.informer.OnChange != nil {
		r.informer.OnChange(before, after)
	}
}

// Replace implements ReflectorStore, for a list.
func (r *mirror[T]) Replace(objects []any, _ string) error {
	store := r.informer.indexer()
	for _, obj := range objects {
		if err := store.Add(r.copyOf(obj)); err != nil {
			return err
		}
	}
	if r.informer.Err() != nil {
		r.informer.Log.Info("Resource is read", "version", r.resource.Version)
	}
	r.store = store
	r.informer.works()
	r.informer.set(store, nil)
	if r.informer.OnSync != nil {
		r.informer.OnSync()
	}
	return nil
}

// Add implements ReflectorStore. After a watch was resumed, obj may be known.
func (r *mirror[T]) Add(obj any) error { return r.Update(obj) }

// Update implements ReflectorStore.
func (r *mirror[T]) Update(obj any) error {
	var before T
	after := r.copyOf(obj)
	last, found, err := r.store.Get(after)
	if err != nil {
		return err
	}
	if found {
		if last == any(after) { // Convert has found nothing new
			return nil
		}
		before = last.(T)
	}
	if err := r.store.Update(after); err != nil {
		return err
	}
	r.changed(before, after)
	return nil
}

// Delete implements ReflectorStore.
func (r *mirror[T]) Delete(obj any) error {
	last, found, err := r.store.Get(obj)
	if !found || err != nil {
		return err
	}
	if err := r.store.Delete(last); err != nil {
		return err
	}
	var none T
	r.changed(last.(T), none)
	return nil
}

// Resync implements ReflectorStore. There is nothing to do without a resync period.
func (*mirror[T]) Resync() error { return nil }
