package cleaner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// filled is a cache with one informer. It cannot be read before the kind is installed.
type filled struct {
	cache.Informers
	toolscache.SharedIndexInformer
	store             toolscache.Store
	installed, synced atomic.Bool
}

func (f *filled) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	if !f.installed.Load() {
		return nil, errors.New("no matches for kind")
	}
	return f, nil
}
func (f *filled) AddIndexers(toolscache.Indexers) error { return nil }
func (f *filled) HasSynced() bool                       { return f.synced.Load() }
func (f *filled) GetStore() toolscache.Store            { return f.store }

// newFilled returns a cache with requests of those ages. Their names are csr-0, csr-1 and so on.
func newFilled(t *testing.T, ages ...time.Duration) *filled {
	t.Helper()
	held := &filled{store: toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)}
	for i, age := range ages {
		obj := object(func(obj *request) {
			obj.Name, obj.CreationTimestamp = fmt.Sprint("csr-", i), metav1.NewTime(time.Now().Add(-age))
		})
		if err := held.store.Add(trimmed(t, obj)); err != nil {
			t.Fatal(err)
		}
	}
	held.installed.Store(true)
	held.synced.Store(true)
	return held
}

// shifted is a clock that differs from the machine's.
type shifted struct {
	clock.RealClock
	by atomic.Int64 // a time.Duration
}

func (s *shifted) Now() time.Time { return s.RealClock.Now().Add(time.Duration(s.by.Load())) }

// passing passes over held until the test ends. It returns a function that takes the names in the queue after a time. It
// must be called in a synctest bubble.
func passing(t *testing.T, held *filled, r *Reconciler) (queue, func(after time.Duration) []string) {
	t.Helper()
	r.Retention = csr.RetentionPolicy{Default: csr.DefaultRetention}
	due := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Hour, time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(due.ShutDown)
	t.Cleanup(cancel)
	go r.enqueueDue(ctx, held, logr.Discard(), due)
	return due, func(after time.Duration) (names []string) {
		time.Sleep(after)
		synctest.Wait()
		for due.Len() > 0 {
			key, _ := due.Get()
			names = append(names, key.Name)
			due.Done(key)
		}
		slices.Sort(names)
		return names
	}
}

func is(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("due: %q, want %q", got, want)
	}
}

// TestPassFindsDueRequests checks that requests enter the queue when they are due, and not earlier.
func TestPassFindsDueRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := newFilled(t, 0, 20*time.Hour, 24*time.Hour-time.Second, 30*time.Hour)
		_, after := passing(t, held, &Reconciler{ServerTime: servertime.Of(clock.RealClock{})})
		is(t, after(0), "csr-3")
		is(t, after(10*time.Second), "csr-2", "csr-3")
		if err := held.store.Delete(trimmed(t, object(func(obj *request) { obj.Name = "csr-3" }))); err != nil {
			t.Fatal(err)
		}
		is(t, after(10*time.Second), "csr-2")
		is(t, after(4*time.Hour), "csr-1", "csr-2")
		is(t, after(20*time.Hour), "csr-0", "csr-1", "csr-2")
	})
}

// TestPassLeavesRetriesToTheQueue checks that a pass does not shorten the back-off of a deletion that fails.
func TestPassLeavesRetriesToTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		queue, after := passing(t, newFilled(t, 30*time.Hour), &Reconciler{ServerTime: servertime.Of(clock.RealClock{})})
		is(t, after(0), "csr-0")
		key := reconcile.Request{NamespacedName: types.NamespacedName{Name: "csr-0"}}
		queue.AddRateLimited(key)
		is(t, after(59*time.Minute))
		is(t, after(time.Minute), "csr-0")
		queue.Forget(key)
		is(t, after(10*time.Second), "csr-0")
	})
}

// TestPassFollowsTheAPIServersTime sets the API server's clock, which was a day behind. Requests that are due now must
// not wait for long.
func TestPassFollowsTheAPIServersTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &shifted{}
		server.by.Store(int64(-24 * time.Hour))
		r := &Reconciler{ServerTime: servertime.Apart(clock.RealClock{}, server)}
		_, after := passing(t, newFilled(t, 30*time.Hour), r)
		is(t, after(time.Minute))
		server.by.Store(0)
		is(t, after(10*time.Second), "csr-0")
		server.by.Store(int64(-24 * time.Hour))
		is(t, after(10*time.Second))
	})
}

// TestPassNeedsTheTimeAndTheCache checks that nothing is enqueued before the time is known and the cache is complete.
func TestPassNeedsTheTimeAndTheCache(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*filled, *Reconciler){
		"unknown time":  func(_ *filled, r *Reconciler) { r.ServerTime = &servertime.Clock{} },
		"no such kind":  func(held *filled, _ *Reconciler) { held.installed.Store(false) },
		"cache unready": func(held *filled, _ *Reconciler) { held.synced.Store(false) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				held, r := newFilled(t, 30*time.Hour), &Reconciler{ServerTime: servertime.Of(clock.RealClock{})}
				spoil(held, r)
				_, after := passing(t, held, r)
				is(t, after(time.Minute))
				held.installed.Store(true)
				held.synced.Store(true)
				if name != "unknown time" {
					is(t, after(time.Minute), "csr-0")
				}
			})
		})
	}
}
