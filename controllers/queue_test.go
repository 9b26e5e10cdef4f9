package controllers

import (
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
)

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// TestRetriesAndWorkers checks the options of a controller. Errors are retried after 200 ms. Each pause is twice as long as
// the last, up to 10 s.
func TestRetriesAndWorkers(t *testing.T) {
	t.Parallel()
	options := controllerOptions(nil, 7, fairly(7))
	for run, want := range []int{200, 400, 800, 1600, 3200, 6400, 10_000, 10_000} {
		if pause := options.RateLimiter.When(fairqueue.Key{Name: "a"}).Milliseconds(); pause != int64(want) {
			t.Errorf("pause %d: %d ms, want %d", run, pause, want)
		}
	}
	if options.MaxConcurrentReconciles != 7 || options.EnableWarmup == nil || *options.EnableWarmup {
		t.Errorf("%+v", options)
	}
	if options.CacheSyncTimeout < 10*365*24*time.Hour || options.ReconciliationTimeout != 3*time.Minute {
		t.Errorf("the process ends when no cache has been filled for %s; a reconcile may take %s",
			options.CacheSyncTimeout, options.ReconciliationTimeout)
	}
}

// newQueue returns the queue of a controller with one worker.
func newQueue[item comparable](
	t *testing.T, clock *clocktesting.FakeClock, items func(string) workqueue.TypedInterface[item],
) workqueue.TypedRateLimitingInterface[item] {
	t.Helper()
	options := controllerOptions(clock, 1, items)
	queue := options.NewQueue("test", options.RateLimiter)
	t.Cleanup(queue.ShutDown)
	return queue
}

// takes fails the test unless the queue returns want next.
func takes[item comparable](t *testing.T, queue workqueue.TypedInterface[item], want item) {
	t.Helper()
	if taken, shutdown := queue.Get(); taken != want || shutdown {
		t.Errorf("%v, shut down %t, want %v", taken, shutdown, want)
	}
}

// TestFairQueueServesRequestersInTurn checks that a controller's queue gives a second requester its turn before the first
// one's second node.
func TestFairQueueServesRequestersInTurn(t *testing.T) {
	t.Parallel()
	queue := newQueue(t, clocktesting.NewFakeClock(noon), fairly(4))
	keys := []fairqueue.Key{{Name: "a", Requester: 1, Lane: 1}, {Name: "b", Requester: 1, Lane: 2}, {Name: "c", Requester: 2, Lane: 3}}
	for _, key := range keys {
		queue.Add(key)
	}
	for _, i := range []int{0, 2, 1} {
		takes(t, queue, keys[i])
	}
}

// TestQueueFollowsTheClock checks that an item returns when the clock is stepped to the end of its delay.
func TestQueueFollowsTheClock(t *testing.T) {
	t.Parallel()
	followsTheClock(t, fairqueue.Key{Name: "a"}, fairly(1))
	followsTheClock(t, reconcile.Request{}, nil)
}

func followsTheClock[item comparable](t *testing.T, key item, items func(string) workqueue.TypedInterface[item]) {
	t.Helper()
	clock := clocktesting.NewFakeClock(noon)
	queue := newQueue(t, clock, items)
	queue.AddAfter(key, time.Hour)
	if length := queue.Len(); length != 0 {
		t.Errorf("%d items are queued before their time", length)
	}
	clock.Step(time.Hour)
	takes(t, queue, key)
}

// TestStepDuringAReconcileIsNotLost checks that a delay counts from when the worker received the item, also after an error.
func TestStepDuringAReconcileIsNotLost(t *testing.T) {
	t.Parallel()
	clock, key := clocktesting.NewFakeClock(noon), fairqueue.Key{Name: "a"}
	queue := newQueue(t, clock, fairly(1))
	queue.Add(key)
	for _, again := range []func(){
		func() { queue.AddAfter(key, time.Hour) }, func() { queue.AddRateLimited(key) },
	} {
		takes(t, queue, key)
		clock.Step(time.Hour) // during the reconcile
		again()
		queue.Done(key)
	}
	takes(t, queue, key)
}

// steppingQueue steps the clock while it adds an item.
type steppingQueue struct {
	workqueue.TypedRateLimitingInterface[string]
	clock  *clocktesting.FakeClock
	delays []time.Duration
}

func (q *steppingQueue) AddAfter(_ string, delay time.Duration) {
	q.delays = append(q.delays, delay)
	q.clock.Step(time.Hour)
}

// TestStepDuringTheAddIsNotLost checks that a step between the computation of a delay and its use delays nothing.
func TestStepDuringTheAddIsNotLost(t *testing.T) {
	t.Parallel()
	inner := &steppingQueue{clock: clocktesting.NewFakeClock(noon)}
	queue := &steppedQueue[string]{TypedRateLimitingInterface: inner, clock: inner.clock}
	queue.AddAfter("a", 90*time.Minute)
	if want := []time.Duration{90 * time.Minute, 30 * time.Minute}; !slices.Equal(inner.delays, want) {
		t.Errorf("added after %v, want %v", inner.delays, want)
	}
}
