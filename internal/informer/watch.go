package informer

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
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

// attempt lists all objects and watches them, until a list or a watch fails. client-go's Reflector resumes the watch
// whenever it ends. The error is nil if the objects must be listed again for another reason.
func (i *Informer[T]) attempt(ctx context.Context) error {
	m := &mirror[T]{Informer: i, resource: i.Resource}
	if i.Find != nil {
		var err error
		if m.resource, err = i.Find(); err != nil {
			return err
		}
	}
	from := plainLists{&toolscache.ListWatch{ListWithContextFunc: m.list, WatchFuncWithContext: m.watch}}
	reflector := toolscache.NewReflectorWithOptions(from, nil, m, toolscache.ReflectorOptions{Name: "informer"})
	err := reflector.ListAndWatchWithContext(ctx)
	if failed, ok := errors.AsType[failure](err); ok {
		return failed.cause
	}
	return err
}

// plainLists lists before it watches. Without it, a Reflector first tries a list that is streamed by a watch.
type plainLists struct{ *toolscache.ListWatch }

// IsWatchListSemanticsUnSupported implements an interface of client-go's package watchlist.
func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

// mirror connects a Reflector with an Informer, for one attempt. It lists and watches for the Reflector, and is the
// store that the Reflector fills.
type mirror[T metav1.Object] struct {
	*Informer[T]
	resource Resource
	store    toolscache.Indexer // nil before the first list
}

// list reads one page.
func (m *mirror[T]) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if options.ResourceVersion == "0" {
		options.ResourceVersion = "" // the newest version: an old one may hold objects that were deleted since
	}
	ctx, cancel := context.WithTimeout(ctx, call.ListTimeout)
	defer cancel()
	list, err := m.resource.list(ctx, m.selecting(options))
	if err != nil {
		return nil, m.explain("list", err)
	}
	return list, nil
}

// watch opens a watch. Until it is open, nothing is watched: client-go repeats a refused call as late as the answer asks.
func (m *mirror[T]) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	m.watched(false)
	watcher, err := m.resource.watch(ctx, m.selecting(options))
	if err != nil {
		return nil, m.explain("watch", err)
	}
	m.watched(true)
	return watcher, nil
}

// selecting returns options with the selectors of the Informer.
func (m *mirror[T]) selecting(options metav1.ListOptions) metav1.ListOptions {
	options.LabelSelector = m.Selector
	if m.Name != "" {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, m.Name).String()
	}
	return options
}

// failure ends an attempt. It has no Unwrap method, because a Reflector retries some errors without a message.
type failure struct{ cause error }

func (f failure) Error() string { return f.cause.Error() }

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

// convert returns the copy to keep of obj.
func (m *mirror[T]) convert(obj any) T {
	if m.Convert == nil {
		return obj.(T)
	}
	return m.Convert(obj.(runtime.Object))
}

// Replace implements ReflectorStore, for a list.
func (m *mirror[T]) Replace(objects []any, _ string) error {
	indexers := toolscache.Indexers{}
	for name, keys := range m.Indexers {
		indexers[name] = func(obj any) ([]string, error) { return keys(obj.(T)), nil }
	}
	m.store = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indexers)
	for _, obj := range objects {
		if err := m.store.Add(m.convert(obj)); err != nil {
			return err
		}
	}
	if m.Err() != nil {
		m.Log.Info("Resource is read", "version", m.resource.Version)
	}
	m.keep(m.store)
	m.OnSync()
	return nil
}

// Add implements ReflectorStore. After a watch was resumed, obj may be known.
func (m *mirror[T]) Add(obj any) error { return m.Update(obj) }

// Update implements ReflectorStore.
func (m *mirror[T]) Update(obj any) error {
	after := m.convert(obj)
	last, _, err := m.store.Get(after)
	if err := errors.Join(err, m.store.Update(after)); err != nil {
		return err
	}
	before, _ := last.(T) // zero if it is new
	m.OnChange(before, after)
	return nil
}

// Delete implements ReflectorStore.
func (m *mirror[T]) Delete(obj any) error {
	last, found, err := m.store.Get(obj)
	if !found || err != nil {
		return err
	}
	var none T
	err = m.store.Delete(last)
	m.OnChange(last.(T), none)
	return err
}

// Resync implements ReflectorStore. There is nothing to do without a resync period.
func (*mirror[T]) Resync() error { return nil }

// FromCache returns the store of all objects of the kind of obj in the manager's cache, once it is filled. FromCache
// retries: discovery fails when a connection is reset, and while the kind is not installed. It returns an error when ctx
// ends, or if the cache has no such store. It calls failed, which may be nil, with each earlier error, and with ErrNotRead
// before it waits for the objects.
func FromCache(
	ctx context.Context, from cache.Informers, obj client.Object, log logr.Logger, failed func(error),
) (toolscache.Store, error) {
	if failed == nil {
		failed = func(error) {}
	}
	var found cache.Informer
	last := ""
	if err := pauses().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		var err error
		if found, err = from.GetInformer(ctx, obj, cache.BlockUntilSynced(false)); err == nil || ctx.Err() != nil {
			return true, context.Cause(ctx)
		}
		failed(err)
		if err.Error() != last {
			last = err.Error()
			log.Error(err, "Waiting for a resource that can't be watched yet")
		}
		return false, nil
	}); err != nil {
		return nil, err
	}
	failed(ErrNotRead)
	if !toolscache.WaitForCacheSync(ctx.Done(), found.HasSynced) {
		return nil, context.Cause(ctx)
	}
	held, ok := found.(interface{ GetStore() toolscache.Store })
	if !ok {
		return nil, fmt.Errorf("the informers of this manager's cache have no store: %T", found)
	}
	return held.GetStore(), nil
}
