package fairqueue

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// TestRetriesAndWorkers checks the options of a controller. Errors are retried after 200 ms. Each pause is twice as long as
// the last, up to 10 s.
func TestRetriesAndWorkers(t *testing.T) {
	options := optionsOf(7, nil, func(name string) workqueue.TypedInterface[Key] { return New(name, 7) })
	for run, want := range []int64{200, 400, 800, 1600, 3200, 6400, 10_000, 10_000} {
		expect.Equal(t, fmt.Sprint("pause in ms ", run), options.RateLimiter.When(Key{Name: "a"}).Milliseconds(), want)
	}
	expect.True(t, options.MaxConcurrentReconciles == 7 && options.EnableWarmup != nil && !*options.EnableWarmup, "%+v", options)
	if options.CacheSyncTimeout < 10*365*24*time.Hour || options.ReconciliationTimeout != 3*time.Minute {
		t.Errorf("the process ends when no cache has been filled for %s; a reconcile may take %s",
			options.CacheSyncTimeout, options.ReconciliationTimeout)
	}
}

// TestQueueFollowsTheClock checks the queues of controllers with a clock that is stepped: an item returns at the end of its
// delay, which counts from when the worker received the item, also after an error.
func TestQueueFollowsTheClock(t *testing.T) {
	followsTheClock(t, Key{Name: "a"}, func(name string) workqueue.TypedInterface[Key] { return New(name, 1) })
	followsTheClock[reconcile.Request](t, reconcile.Request{}, nil)
}

func followsTheClock[item comparable](t *testing.T, key item, items func(string) workqueue.TypedInterface[item]) {
	t.Helper()
	clock := clocktesting.NewFakeClock(noon)
	options := optionsOf(1, clock, items)
	queue := options.NewQueue("test", options.RateLimiter)
	defer queue.ShutDown()
	queue.AddAfter(key, time.Hour)
	expect.Equal(t, "items that are queued before their time", queue.Len(), 0)
	clock.Step(time.Hour)
	for _, again := range []func(){
		func() { queue.AddAfter(key, time.Hour) }, func() { queue.AddRateLimited(key) }, func() {},
	} {
		taken, shutdown := queue.Get()
		expect.True(t, taken == key && !shutdown, "%v, shut down %t, want %v", taken, shutdown, key)
		clock.Step(time.Hour) // during the reconcile
		again()
		queue.Done(key)
	}
}

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
	inner := &steppingQueue{clock: clocktesting.NewFakeClock(noon)}
	queue := &steppedQueue[string]{TypedRateLimitingInterface: inner, clock: inner.clock}
	queue.AddAfter("a", 90*time.Minute)
	expect.Equal(t, "added after", inner.delays, []time.Duration{90 * time.Minute, 30 * time.Minute})
}
