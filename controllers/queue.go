package controllers

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
)

const (
	// firstRetry and lastRetry bound the pause after an error. It starts as kube-controller-manager's, and doubles.
	firstRetry, lastRetry = 200 * time.Millisecond, 10 * time.Second
	// reconciliationTimeout ends a reconcile that hangs. Each API call has a shorter timeout of its own.
	reconciliationTimeout = 3 * time.Minute
	// cacheSyncTimeout is a century, because controller-runtime ends the process after it. The manager waits for a missing
	// CRD, a missing right or an unreachable API server.
	cacheSyncTimeout = 100 * 365 * 24 * time.Hour
)

// fairly makes a queue in which no requester delays another.
func fairly(workers int) func(name string) workqueue.TypedInterface[fairqueue.Key] {
	return func(name string) workqueue.TypedInterface[fairqueue.Key] { return fairqueue.New(name, workers) }
}

// controllerOptions returns the options of a controller with that many workers. The delays of its queue follow own, or
// the real clock if own is nil. make makes the queue without delays; a queue of client-go if it is nil.
func controllerOptions[item comparable](
	own clock.WithTicker, workers int, make func(name string) workqueue.TypedInterface[item],
) controller.TypedOptions[item] {
	warmUp := false
	return controller.TypedOptions[item]{
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[item](firstRetry, lastRetry),
		CacheSyncTimeout:        cacheSyncTimeout,
		ReconciliationTimeout:   reconciliationTimeout,
		// A standby's queue would grow with every new request. The cache fills it after the election.
		EnableWarmup: &warmUp,
		NewQueue: func(name string, limiter workqueue.TypedRateLimiter[item]) workqueue.TypedRateLimitingInterface[item] {
			delaying := workqueue.TypedDelayingQueueConfig[item]{Name: name, Clock: own}
			if make != nil {
				delaying.Queue = make(name)
			}
			queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[item]{
				DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(delaying),
			})
			if own != nil {
				queue = &steppedQueue[item]{TypedRateLimitingInterface: queue, limiter: limiter, clock: own}
			}
			return queue
		},
	}
}

// steppedQueue counts a delay from the moment when the worker received the item. If a test steps the clock during a
// reconcile, another queue would delay the item by the whole step, possibly for ever.
type steppedQueue[item comparable] struct {
	workqueue.TypedRateLimitingInterface[item]
	limiter workqueue.TypedRateLimiter[item]
	clock   clock.PassiveClock

	taken sync.Map // the items in progress → time.Time
}

// Get blocks until an item is queued.
func (q *steppedQueue[item]) Get() (taken item, shutdown bool) {
	taken, shutdown = q.TypedRateLimitingInterface.Get()
	q.taken.Store(taken, q.clock.Now())
	return taken, shutdown
}

// AddAfter adds again after delay.
func (q *steppedQueue[item]) AddAfter(again item, delay time.Duration) {
	since := q.clock.Now()
	if taken, working := q.taken.Load(again); working {
		since = taken.(time.Time)
	}
	// Of two delays the shorter one counts. If the clock is stepped during the first call, the second one is right.
	for range 2 {
		q.TypedRateLimitingInterface.AddAfter(again, delay-q.clock.Since(since))
	}
}

// AddRateLimited adds again after the pause that the rate limiter sets.
func (q *steppedQueue[item]) AddRateLimited(again item) { q.AddAfter(again, q.limiter.When(again)) }

// Done ends the work on done.
func (q *steppedQueue[item]) Done(done item) {
	q.taken.Delete(done)
	q.TypedRateLimitingInterface.Done(done)
}
