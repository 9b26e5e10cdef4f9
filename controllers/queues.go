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
	// slotTime is how long an item occupies one of the workers. A healthy API server answers all its calls within that.
	slotTime = time.Second
	// goroutinesPerWorker bounds how many items are under way at most, with those whose calls hang.
	goroutinesPerWorker = 10
)

// slotQueue gives out as many items at a time as there are slots. An item whose calls take longer than slotTime frees
// its slot, so a call that hangs holds up only its own request. The order stays that of the queue below: an item is
// taken out only when a slot is free.
type slotQueue struct {
	Queue
	slots   chan struct{}
	stopped chan struct{}
	stop    func()

	mu      sync.Mutex
	working map[reconcile.Request]func() // frees the item's slot
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

// Get blocks until there is a free slot and an item for it.
func (q *slotQueue) Get() (item reconcile.Request, shutdown bool) {
	select {
	case q.slots <- struct{}{}:
	case <-q.stopped:
		return q.Queue.Get() // what is left is worked on without
	}
	item, shutdown = q.Queue.Get()
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

// Done frees the slot of item.
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

// ShutDownWithDrain is ShutDown, and waits until all items are done.
func (q *slotQueue) ShutDownWithDrain() {
	q.stop()
	q.Queue.ShutDownWithDrain()
}

// retries is a rate limiter whose pause grows by a factor with each failure of an item.
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

// When notes a failure of item and returns how long to wait before it is tried again.
func (r *retries) When(item reconcile.Request) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	pause := float64(r.first) * math.Pow(r.growth, float64(r.failures[item]))
	r.failures[item]++
	return time.Duration(min(pause, float64(r.last)))
}

// NumRequeues returns the failures of item.
func (r *retries) NumRequeues(item reconcile.Request) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failures[item]
}

// Forget ends the count of item.
func (r *retries) Forget(item reconcile.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failures, item)
}

// newQueue returns a rate limiting queue that gives items out in the order of storage.
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
