package csrenv

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
)

// steppedQueue counts a delay from when its item was taken out, not from when the delay was asked for. If a test steps
// the clock while a reconciler works, the item would otherwise be delayed by the whole step.
type steppedQueue struct {
	controllers.Queue
	clock clock.PassiveClock

	mu    sync.Mutex
	taken map[reconcile.Request]time.Time
}

func newSteppedQueue(queue controllers.Queue, steps clock.PassiveClock) *steppedQueue {
	return &steppedQueue{Queue: queue, clock: steps, taken: map[reconcile.Request]time.Time{}}
}

// Get blocks until there is an item.
func (q *steppedQueue) Get() (item reconcile.Request, shutdown bool) {
	item, shutdown = q.Queue.Get()
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
	q.Queue.AddAfter(item, delay)
}

// Done marks item as done.
func (q *steppedQueue) Done(item reconcile.Request) {
	q.mu.Lock()
	delete(q.taken, item)
	q.mu.Unlock()
	q.Queue.Done(item)
}
