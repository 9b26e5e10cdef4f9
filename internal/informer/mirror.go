package informer

import (
	"context"
	"fmt"
	"time"

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
	*Informer[T]
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
func (m *mirror[T]) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if options.ResourceVersion == "0" {
		options.ResourceVersion = "" // the newest version: an old one may hold objects that were deleted since
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := m.resource.list(ctx, m.narrowed(options))
	if err != nil {
		return nil, m.explain("list", err)
	}
	return list, nil
}

// watch opens a watch. Until it is open, nothing is watched: client-go repeats a refused call as late as the answer asks.
func (m *mirror[T]) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	m.unwatched()
	watcher, err := m.resource.watch(ctx, m.narrowed(options))
	if err != nil {
		return nil, m.explain("watch", err)
	}
	m.mu.Lock()
	m.failing = time.Time{}
	m.mu.Unlock()
	m.reported = ""
	return watcher, nil
}

// narrowed returns options that select the objects of the Informer.
func (m *mirror[T]) narrowed(options metav1.ListOptions) metav1.ListOptions {
	options.LabelSelector = m.Selector
	if m.Name != "" {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, m.Name).String()
	}
	return options
}

// explain returns a failure that says what failed and what to do.
func (m *mirror[T]) explain(verb string, err error) failure {
	resource := m.resource.GroupResource().String()
	switch {
	case apierrors.IsNotFound(err):
		return failure{fmt.Errorf("%s in version %s is not installed yet: %w", resource, m.resource.Version, err)}
	case !apierrors.IsForbidden(err):
		return failure{fmt.Errorf("%s %s: %w", verb, resource, err)}
	case m.GrantedBy != "":
		resource += " (" + m.GrantedBy + ")"
	}
	return failure{fmt.Errorf("grant list and watch on %s: %w", resource, err)}
}

// copyOf returns the object to keep of obj.
func (m *mirror[T]) copyOf(obj any) T {
	if m.Convert != nil {
		return m.Convert(obj.(runtime.Object))
	}
	return obj.(T)
}

// Replace implements ReflectorStore, for a list.
func (m *mirror[T]) Replace(objects []any, _ string) error {
	store := m.indexer()
	for _, obj := range objects {
		if err := store.Add(m.copyOf(obj)); err != nil {
			return err
		}
	}
	if m.Err() != nil {
		m.Log.Info("Resource is read", "version", m.resource.Version)
	}
	m.store = store
	m.set(store, nil)
	if m.OnSync != nil {
		m.OnSync()
	}
	return nil
}

// Add implements ReflectorStore. After a watch was resumed, obj may be known.
func (m *mirror[T]) Add(obj any) error { return m.Update(obj) }

// Update implements ReflectorStore. Nothing has changed if Convert returns the last copy.
func (m *mirror[T]) Update(obj any) error {
	after := m.copyOf(obj)
	last, _, err := m.store.Get(after)
	if err != nil || last == any(after) {
		return err
	}
	if err := m.store.Update(after); err != nil {
		return err
	}
	before, _ := last.(T) // zero if it is new
	m.changed(before, after)
	return nil
}

// Delete implements ReflectorStore.
func (m *mirror[T]) Delete(obj any) error {
	last, found, err := m.store.Get(obj)
	if !found || err != nil {
		return err
	}
	if err := m.store.Delete(last); err != nil {
		return err
	}
	var none T
	m.changed(last.(T), none)
	return nil
}

func (m *mirror[T]) changed(before, after T) {
	if m.OnChange != nil {
		m.OnChange(before, after)
	}
}

// Resync implements ReflectorStore. There is nothing to do without a resync period.
func (*mirror[T]) Resync() error { return nil }
