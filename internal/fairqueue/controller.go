package fairqueue

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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

// NewController returns a controller of mgr that works on requests in fair order. Its options are those of Options.
func NewController(
	mgr manager.Manager, name string, workers int, own clock.PassiveClock, work reconcile.TypedFunc[Key],
) (controller.TypedController[Key], error) {
	options := optionsOf(workers, own, func(name string) workqueue.TypedInterface[Key] { return New(name, workers) })
	options.Reconciler = work
	options.LogConstructor = Logger(mgr, name, func(key Key) string { return key.Name })
	return controller.NewTyped(name, mgr, options)
}

// Logger returns the LogConstructor of a controller. name returns the name of an item, which all lines about it hold,
// shortened: it may have 2 kB.
func Logger[item any](mgr manager.Manager, controller string, name func(item) string) func(*item) logr.Logger {
	log := mgr.GetLogger().WithValues("controller", controller)
	return func(of *item) logr.Logger { // for each attempt
		if of == nil {
			return log
		}
		return log.WithValues("name", csr.Shorten(name(*of)))
	}
}

// Options returns the options of a controller with that many workers and a queue in no special order. The delays of its
// queue follow own if that is a clock that a test steps, otherwise the real clock.
func Options(workers int, own clock.PassiveClock) controller.Options {
	return optionsOf[reconcile.Request](workers, own, nil)
}

// optionsOf returns Options. make makes the queue without delays; a queue of client-go if it is nil.
func optionsOf[item comparable](
	workers int, own clock.PassiveClock, make func(name string) workqueue.TypedInterface[item],
) controller.TypedOptions[item] {
	stepped, _ := own.(clock.WithTicker)
	if _, isReal := own.(clock.RealClock); isReal {
		stepped = nil
	}
	warmUp := false
	return controller.TypedOptions[item]{
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[item](firstRetry, lastRetry),
		CacheSyncTimeout:        cacheSyncTimeout,
		ReconciliationTimeout:   reconciliationTimeout,
		// A standby's queue would grow with every new request. The cache fills it after the election.
		EnableWarmup: &warmUp,
		NewQueue: func(name string, limiter workqueue.TypedRateLimiter[item]) workqueue.TypedRateLimitingInterface[item] {
			delaying := workqueue.TypedDelayingQueueConfig[item]{Name: name, Clock: stepped}
			if make != nil {
				delaying.Queue = make(name)
			}
			queue := workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[item]{
				DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(delaying),
			})
			if stepped != nil {
				queue = &steppedQueue[item]{TypedRateLimitingInterface: queue, limiter: limiter, clock: stepped}
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

type (
	object = *certificatesv1.CertificateSigningRequest
	queue  = workqueue.TypedRateLimitingInterface[Key]
)

// Events returns a handler that calls changed for each new or changed request, and deleted for each deleted one.
func Events(changed func(object, queue), deleted func(object)) handler.TypedEventHandler[object, Key] {
	return handler.TypedFuncs[object, Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[object], to queue) { changed(e.Object, to) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[object], to queue) { changed(e.ObjectNew, to) },
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[object], _ queue) { deleted(e.Object) },
	}
}

// Wake returns a source that queues the keys of waiting each time that changed signals. If ready is set, the controller
// starts after ready has returned.
func Wake(changed <-chan struct{}, ready func(context.Context) error, waiting func() []Key) source.TypedSource[Key] {
	return source.TypedFunc[Key](func(ctx context.Context, to queue) error {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
					for _, key := range waiting() {
						to.Add(key)
					}
				}
			}
		}()
		if ready == nil {
			return nil
		}
		return ready(ctx)
	})
}
