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

// TestRetriesAndWorkers checks the options of a controller. Errors are retried after 200 ms. Each pause is twice as long as
// the last, up to 10 s.
func TestRetriesAndWorkers(t *testing.T) {
	t.Parallel()
	options := controllerOptions(nil, 7, fairly(7))
	key := fairqueue.Key{Name: "a"}
	var pauses []time.Duration
	for range 10 {
		pauses = append(pauses, options.RateLimiter.When(key))
	}
	const ms = time.Millisecond
	want := []time.Duration{
		200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 10 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second,
	}
	if !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	if options.MaxConcurrentReconciles != 7 || options.EnableWarmup == nil || *options.EnableWarmup {
		t.Errorf("%+v", options)
	}
	if options.CacheSyncTimeout < 10*365*24*time.Hour {
		t.Errorf("the process ends when no cache has been filled for %s", options.CacheSyncTimeout)
	}
	if options.ReconciliationTimeout != 3*time.Minute {
		t.Errorf("a reconcile may take %s", options.ReconciliationTimeout)
	}
}

// TestFairQueueServesRequestersInTurn checks that a controller's queue gives a second requester its turn before the first
// one's second node.
func TestFairQueueServesRequestersInTurn(t *testing.T) {
	t.Parallel()
	options := controllerOptions(nil, 4, fairly(4))
	queue := options.NewQueue("test-fair", options.RateLimiter)
	defer queue.ShutDown()
	for _, key := range []fairqueue.Key{
		{Name: "a", Requester: 1, Lane: 1}, {Name: "b", Requester: 1, Lane: 2}, {Name: "c", Requester: 2, Lane: 3},
	} {
		queue.Add(key)
	}
	var got []string
	for range 3 {
		key, _ := queue.Get()
		got = append(got, key.Name)
	}
	if want := []string{"a", "c", "b"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// TestQueueFollowsTheClock checks that an item returns when the clock is stepped to the end of its delay.
func TestQueueFollowsTheClock(t *testing.T) {
	t.Parallel()
	fair, fifo := fairqueue.Key{Name: "a"}, reconcile.Request{}
	clock := clocktesting.NewFakeClock(noon)
	followsTheClock(t, clock, fair, fairly(1))
	followsTheClock(t, clock, fifo, nil)
}

func followsTheClock[item comparable](t *testing.T, clock *clocktesting.FakeClock, key item, items func(string) workqueue.TypedInterface[item]) {
	t.Helper()
	options := controllerOptions(clock, 1, items)
	queue := options.NewQueue("test-clock", options.RateLimiter)
	defer queue.ShutDown()
	queue.AddAfter(key, time.Hour)
	if length := queue.Len(); length != 0 {
		t.Errorf("%d items are queued before their time", length)
	}
	clock.Step(time.Hour)
	if taken, shutdown := queue.Get(); taken != key || shutdown {
		t.Errorf("%v, shut down %t", taken, shutdown)
	}
	queue.Done(key)
}

// TestStepDuringAReconcileIsNotLost checks that a delay counts from when the worker received the item, also after an error.
func TestStepDuringAReconcileIsNotLost(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(noon)
	options := controllerOptions(clock, 1, fairly(1))
	queue := options.NewQueue("test-step", options.RateLimiter)
	defer queue.ShutDown()
	key := fairqueue.Key{Name: "a"}
	queue.Add(key)
	for _, again := range []func(){
		func() { queue.AddAfter(key, time.Hour) }, func() { queue.AddRateLimited(key) },
	} {
		taken, _ := queue.Get()
		clock.Step(time.Hour) // during the reconcile
		again()
		queue.Done(taken)
	}
	if again, shutdown := queue.Get(); again != key || shutdown {
		t.Errorf("%v, shut down %t", again, shutdown)
	}
	queue.Done(key)
}

// steppingQueue steps the clock while it adds an item.
type steppingQueue struct {
	workqueue.TypedRateLimitingInterface[string]
	step   func()
	delays []time.Duration
}

func (q *steppingQueue) AddAfter(_ string, delay time.Duration) {
	q.delays = append(q.delays, delay)
	q.step()
}

// TestStepDuringTheAddIsNotLost checks that a step between the computation of a delay and its use delays nothing.
func TestStepDuringTheAddIsNotLost(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(noon)
	inner := &steppingQueue{step: func() { clock.Step(time.Hour) }}
	queue := &steppedQueue[string]{TypedRateLimitingInterface: inner, clock: clock}
	queue.AddAfter("a", 90*time.Minute)
	if want := []time.Duration{90 * time.Minute, 30 * time.Minute}; !slices.Equal(inner.delays, want) {
		t.Errorf("added after %v, want %v", inner.delays, want)
	}
}
