// Package informer watches one named object, or all objects of one kind, for a caller that must know whether its copy
// may be trusted.
//
// The informers of the manager's cache continue to answer after the right to watch was withdrawn, and stop the manager
// if a kind is not installed. An Informer does neither. It retries by itself, after a second at first and after ten
// seconds at most, and never blocks a caller. Err says why there is no copy:
//
//   - nothing was read yet: a CRD is not installed, a right is missing, the API server is unreachable;
//   - the API server has refused a list or a watch (status 401, 403, 404 or 405): the copy is dropped at once;
//   - for 20 seconds, nothing could be listed or watched for any other reason: the copy is dropped.
//
// During a shorter failure the copy stays in use. A caller that continues with the last copy for longer, as the signer
// does with its CA, keeps that copy itself. HTTP/2 health checks of client-go end dead connections. As with every
// informer, an API server that accepts a watch and sends nothing is not noticed.
//
// An Informer fills its copy by a Reflector of client-go. A SharedIndexInformer would convert an object before the events
// ahead of it are stored, report no relist, and call its handlers from other goroutines.
//
// FromCache is for the informers of the manager's cache.
package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

const (
	// firstRetry and lastRetry bound the pause between attempts.
	firstRetry, lastRetry = time.Second, 10 * time.Second
	// longestGap is how long a copy stays in use while nothing can be listed or watched.
	longestGap = 20 * time.Second
)

// passed measures how long attempts and failures last.
var passed clock.RealClock

// ErrNotRead is the error of an Informer that has not tried to read anything yet.
var ErrNotRead = errors.New("not read yet")

// Informer holds a copy of the objects that it watches. T is the type of the copy of an object. Set the fields before
// Start. Start calls Find, Convert, OnSync, OnChange and OnFailure one at a time, and waits for each.
type Informer[T metav1.Object] struct {
	// Resource is the resource to watch. If Find is set, it returns the resource before each attempt, because a CRD may
	// come and go.
	Resource Resource
	Find     func() (Resource, error)
	// Name and Selector, a label selector, select the objects. To watch one object by its name, a role for that name is
	// enough.
	Name, Selector string

	// Convert, if set, returns the copy that is kept of an object.
	Convert func(runtime.Object) T
	// Indexers return the keys by which ByIndex finds an object, by the name of the index.
	Indexers map[string]func(T) []string

	// OnSync is called after all objects have been read: at the start, and whenever a watch could not be
	// resumed. Any object may have changed or be gone.
	OnSync func()
	// OnChange is called after an object has changed since OnSync. before is zero for a new object, and
	// after is zero for a deleted object.
	OnChange func(before, after T)
	// OnFailure, if set, is called with each new reason why there is no copy.
	OnFailure func(error)

	// GrantedBy names the manifest with the role to read the resource, for messages.
	GrantedBy string
	// Log has values that name the watched objects.
	Log logr.Logger

	mu      sync.RWMutex
	store   toolscache.Indexer // nil while there is no copy
	err     error              // why there was no copy, until a watch is open again; nil before the first attempt
	failing time.Time          // since when nothing could be listed or watched; zero while a watch is open
}

// One returns an Informer of the object of that name. It calls changed with the object, or with the zero value if there is
// none, once that is known and after each change. It calls failed with each new reason why that is unknown.
func One[T metav1.Object](
	resource Resource, name types.NamespacedName, log logr.Logger, changed func(T), failed func(error),
) *Informer[T] {
	i := &Informer[T]{Resource: resource, Name: name.Name, Log: log, OnFailure: failed}
	i.OnSync = func() {
		if obj, _, err := i.Get(name.Namespace, name.Name); err == nil {
			changed(obj)
		}
	}
	i.OnChange = func(_, _ T) { i.OnSync() }
	return i
}

// NeedLeaderElection returns false. A standby reads too, so that it can answer as soon as it becomes the leader.
func (*Informer[T]) NeedLeaderElection() bool { return false }

// pauses returns the pauses between attempts. They start again after an attempt that took longer than two of the longest.
func pauses() wait.DelayFunc {
	backoff := wait.Backoff{Duration: firstRetry, Factor: 2, Steps: math.MaxInt32, Cap: lastRetry}
	return backoff.DelayWithReset(passed, 2*lastRetry)
}

// Start watches until ctx ends. An attempt lists all objects and watches them, until a list or a watch fails.
func (i *Informer[T]) Start(ctx context.Context) error {
	_ = pauses().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := i.attempt(ctx); ctx.Err() == nil {
			i.failed(err)
		}
		return false, nil
	})
	i.drop(context.Cause(ctx))
	return nil
}

// failed records that nothing is watched any more. It drops the copy because of err, unless the copy may still be
// current, and reports each new reason. err is nil if the objects must be listed again although no call has failed.
func (i *Informer[T]) failed(err error) {
	i.watched(false)
	// An API server that has refused a call may answer others differently now, too.
	refused := apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) ||
		apierrors.IsMethodNotSupported(err)
	if err == nil || !refused && i.Err() == nil || !i.drop(err) {
		return
	}
	i.Log.Info("Resource is not available", "reason", err.Error())
	if i.OnFailure != nil {
		i.OnFailure(err)
	}
}

// watched records whether a watch is open.
func (i *Informer[T]) watched(open bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case open:
		i.err, i.failing = nil, time.Time{}
	case i.failing.IsZero():
		i.failing = passed.Now()
	}
}

// keep replaces the copy with a list that was read just now.
func (i *Informer[T]) keep(store toolscache.Indexer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.store, i.failing = store, time.Time{}
}

// drop drops the copy because of err. It reports whether that is another reason than the last since a watch was open.
func (i *Informer[T]) drop(err error) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	another := i.err == nil || i.err.Error() != err.Error()
	i.store, i.err = nil, err
	return another
}

// errGap is the error of a copy that is too old, while an attempt to replace it hangs.
var errGap = fmt.Errorf("nothing could be listed or watched for %s", longestGap)

func (i *Informer[T]) read() (toolscache.Indexer, error) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	switch {
	case i.store == nil:
		return nil, cmp.Or(i.err, ErrNotRead)
	case !i.failing.IsZero() && passed.Since(i.failing) >= longestGap:
		return nil, errGap
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

func typed[T any](objects []any) []T {
	all := make([]T, len(objects))
	for n, obj := range objects {
		all[n] = obj.(T)
	}
	return all
}
