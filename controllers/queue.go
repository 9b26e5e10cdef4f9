package controllers

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// steppedQueue counts a delay from when its item was taken out, not from when the delay was asked for: a clock that is
// stepped while a reconciler works would otherwise put the item off by the whole step.
type steppedQueue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	clock clock.PassiveClock

	mu    sync.Mutex
	taken map[reconcile.Request]time.Time
}

// newQueue is a rate limiting queue that gives items out in the order of storage.
func newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request], ticks clock.WithTicker, storage workqueue.Queue[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	items := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name, Clock: ticks, Queue: storage})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Clock: ticks, Queue: items})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name, DelayingQueue: delaying})
}

func newSteppedQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request], steps clock.WithTicker, storage workqueue.Queue[reconcile.Request]) *steppedQueue {
	return &steppedQueue{
		TypedRateLimitingInterface: newQueue(name, limiter, steps, storage),
		clock:                      steps,
		taken:                      map[reconcile.Request]time.Time{},
	}
}

// Get blocks until there is an item.
func (q *steppedQueue) Get() (item reconcile.Request, shutdown bool) {
	item, shutdown = q.TypedRateLimitingInterface.Get()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !shutdown {
		q.taken[item] = q.clock.Now()
	}
	return item, shutdown
}

// AddAfter adds item once delay has passed.
func (q *steppedQueue) AddAfter(item reconcile.Request, delay time.Duration) {
	q.mu.Lock()
	since, working := q.taken[item]
	q.mu.Unlock()
	if working {
		delay -= q.clock.Since(since)
	}
	q.TypedRateLimitingInterface.AddAfter(item, delay)
}

// Done says that item has been worked on.
func (q *steppedQueue) Done(item reconcile.Request) {
	q.mu.Lock()
	delete(q.taken, item)
	q.mu.Unlock()
	q.TypedRateLimitingInterface.Done(item)
}
