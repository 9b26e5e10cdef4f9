package cleaner

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// filled is a cache with an informer that has synced.
type filled struct {
	cache.Informers
	toolscache.SharedIndexInformer
	store toolscache.Store
}

func (f *filled) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return f, nil
}
func (f *filled) AddIndexers(toolscache.Indexers) error { return nil }
func (f *filled) HasSynced() bool                       { return true }
func (f *filled) GetStore() toolscache.Store            { return f.store }

// TestSearchFindsDueRequests checks that a request enters the queue once requests can be judged, and before it is due.
func TestSearchFindsDueRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		requests := &filled{store: toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)}
		for i, age := range []time.Duration{0, 20 * time.Hour, 24*time.Hour - horizon, 30 * time.Hour} {
			obj := object(func(obj *request) {
				obj.Name, obj.CreationTimestamp = fmt.Sprint("csr-", i), metav1.NewTime(start.Add(-age))
			})
			if err := requests.store.Add(obj); err != nil {
				t.Fatal(err)
			}
		}
		r := &Reconciler{
			Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, Clock: clock.RealClock{}, SupersededAfter: 48 * time.Hour,
		}
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.search(ctx, requests, logr.Discard(), queue)
		found := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(time.Until(start.Add(after)))
			synctest.Wait()
			if got := queue.Len(); got != want {
				t.Errorf("after %s the queue holds %d requests, want %d", after, got, want)
			}
		}
		found(time.Minute, 0) // the index is not complete
		r.pending.complete.Store(true)
		found(time.Minute+time.Second, 2)
		found(3*time.Hour, 2)
		found(4*time.Hour, 3)
		found(23*time.Hour, 3)
		found(24*time.Hour, 4)
	})
}

// shifted is a clock that differs from the machine's.
type shifted struct {
	clock.RealClock
	by atomic.Int64 // a time.Duration
}

func (s *shifted) Now() time.Time { return s.RealClock.Now().Add(time.Duration(s.by.Load())) }

// TestSearchFollowsTheAPIServersTime corrects the API server's clock, which was a day behind. Requests that are due now
// must not wait for the next search by the machine's clock.
func TestSearchFollowsTheAPIServersTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests := &filled{store: toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)}
		if err := requests.store.Add(object(func(obj *request) {
			obj.CreationTimestamp = metav1.NewTime(time.Now().Add(-30 * time.Hour))
		})); err != nil {
			t.Fatal(err)
		}
		server := &shifted{}
		server.by.Store(int64(-24 * time.Hour))
		r := &Reconciler{
			Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, Clock: clock.RealClock{},
			ServerTime: servertime.Apart(clock.RealClock{}, server),
		}
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.search(ctx, requests, logr.Discard(), queue)
		time.Sleep(time.Minute)
		synctest.Wait()
		if queue.Len() != 0 {
			t.Error("a request is due by the machine's clock only, and was found")
		}
		server.by.Store(0)
		time.Sleep(2 * searchTick)
		synctest.Wait()
		if queue.Len() != 1 {
			t.Error("a request is due by the corrected clock, and was not found")
		}
	})
}

// TestSoon checks which requests enter the queue with an event.
func TestSoon(t *testing.T) {
	t.Parallel()
	dueIn := func(left time.Duration) *request {
		return object(func(obj *request) { obj.CreationTimestamp = metav1.NewTime(now.Add(left - 24*time.Hour)) })
	}
	deleted := dueIn(0)
	deleted.DeletionTimestamp = &metav1.Time{Time: now}
	for name, test := range map[string]struct {
		obj   client.Object
		known bool
		want  bool
	}{
		"overdue":                      {dueIn(-time.Hour), true, true},
		"due at the horizon":           {dueIn(horizon), true, true},
		"due after the horizon":        {dueIn(horizon + time.Nanosecond), true, false},
		"overdue, the time is unknown": {dueIn(-time.Hour), false, false},
		"being deleted":                {deleted, true, false},
		"another kind":                 {&corev1.Secret{}, true, false},
	} {
		r, _, _ := newReconciler(nil, now, nil, nil)
		if !test.known {
			r.ServerTime = &servertime.Clock{} // has measured nothing
		}
		if got := r.soon(test.obj); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

// unsynced is an informer that has not read the requests yet.
type unsynced struct{ filled }

func (u *unsynced) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return u, nil
}
func (*unsynced) HasSynced() bool { return false }

// storeless is an informer of another cache, whose store can't be read.
type storeless struct {
	cache.Informers
	cache.Informer
}

func (s *storeless) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return s, nil
}

// TestSearchNeedsTheWholeCache checks that nothing is searched that is not complete.
func TestSearchNeedsTheWholeCache(t *testing.T) {
	t.Parallel()
	store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	if err := store.Add(object(func(obj *request) { obj.CreationTimestamp = metav1.NewTime(now.Add(-30 * time.Hour)) })); err != nil {
		t.Fatal(err)
	}
	for name, cached := range map[string]cache.Informers{
		"not synced": &unsynced{filled{store: store}}, "no store": &storeless{},
	} {
		r, _, _ := newReconciler(nil, now, nil, nil)
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if r.search(ctx, cached, logr.Discard(), queue); queue.Len() > 0 {
			t.Errorf("%s: a request is in the queue", name)
		}
	}
}
