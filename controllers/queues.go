package controllers

import (
	"math"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// slotTime is how long an item occupies a worker. A healthy API server answers all calls of an item within that time.
	slotTime = time.Second
	// goroutinesPerWorker bounds the items that are in progress, including items with calls that hang.
	goroutinesPerWorker = 10
	// claimPause is the pause of an item that the standby works on.
	claimPause = 50 * time.Millisecond
)

// slotQueue returns at most as many items at a time as it has slots. An item that takes longer than slotTime releases
// its slot, so a call that hangs delays only its own request. The underlying queue sets the order: slotQueue takes an
// item only when a slot is free.
type slotQueue struct {
	Queue
	claims  *claims // of the standby; nil without one
	slots   chan struct{}
	stopped chan struct{}
	stop    func()

	mu      sync.Mutex
	working map[reconcile.Request]func() // releases the item's slot
}

func newSlotQueue(items Queue, slots int) *slotQueue {
	stopped := make(chan struct{})
	return &slotQueue{
		Queue:   items,
		slots:   make(chan struct{}, slots),
		stopped: stopped,
		stop:    sync.OnceFunc(func() { close(stopped) }),
		working: map[reconcile.Request]func(){},
	}
}

// Get blocks until a slot is free and an item is queued.
func (q *slotQueue) Get() (item reconcile.Request, shutdown bool) {
	select {
	case q.slots <- struct{}{}:
	case <-q.stopped:
		return q.Queue.Get() // the remaining items need no slot
	}
	item, shutdown = q.Queue.Get()
	for !shutdown && q.claims.claimed(item) { // the standby's early work on it ends soon
		q.Queue.Done(item)
		q.AddAfter(item, claimPause)
		item, shutdown = q.Queue.Get()
	}
	free := sync.OnceFunc(func() { <-q.slots })
	if shutdown {
		free()
		return item, shutdown
	}
	timer := time.AfterFunc(slotTime, free)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working[item] = func() {
		timer.Stop()
		free()
	}
	return item, shutdown
}

// Done releases the slot of item.
func (q *slotQueue) Done(item reconcile.Request) {
	q.mu.Lock()
	free := q.working[item]
	delete(q.working, item)
	q.mu.Unlock()
	if free != nil {
		free()
	}
	q.Queue.Done(item)
}

// ShutDown ends Get once the queue is empty.
func (q *slotQueue) ShutDown() {
	q.stop()
	q.Queue.ShutDown()
}

// ShutDownWithDrain shuts the queue down and waits until all items are done.
func (q *slotQueue) ShutDownWithDrain() {
	q.stop()
	q.Queue.ShutDownWithDrain()
}

// retries is a rate limiter that multiplies an item's pause by growth after each failure.
type retries struct {
	first, last time.Duration
	growth      float64

	mu       sync.Mutex
	failures map[reconcile.Request]int
}

var _ workqueue.TypedRateLimiter[reconcile.Request] = &retries{}

func newRetries(first, last time.Duration, growth float64) *retries {
	return &retries{first: first, last: last, growth: growth, failures: map[reconcile.Request]int{}}
}

// When counts a failure of item and returns the pause before the retry.
func (r *retries) When(item reconcile.Request) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	pause := float64(r.first) * math.Pow(r.growth, float64(r.failures[item]))
	r.failures[item]++
	return time.Duration(min(pause, float64(r.last)))
}

// NumRequeues returns the number of failures of item.
func (r *retries) NumRequeues(item reconcile.Request) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failures[item]
}

// Forget resets the failures of item.
func (r *retries) Forget(item reconcile.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failures, item)
}

// newQueue returns a rate-limiting queue. storage sets the order of its items.
func newQueue(
	name string, limiter workqueue.TypedRateLimiter[reconcile.Request], ticks clock.WithTicker,
	storage workqueue.Queue[reconcile.Request],
) Queue {
	items := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{
		Name: name, Clock: ticks, Queue: storage,
	})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{
		Name: name, Clock: ticks, Queue: items,
	})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
		workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name, DelayingQueue: delaying})
}
