package csrenv

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestSteppedQueueCountsADelayFromWhenItsItemWasTaken(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	queue := newSteppedQueue(workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.DefaultTypedControllerRateLimiter[reconcile.Request](),
		workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: "test", Clock: clock},
	), clock)
	defer queue.ShutDown()
	key := reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}
	queue.Add(key)
	taken, _ := queue.Get()
	clock.Step(time.Hour) // during the reconcile
	queue.AddAfter(taken, time.Hour)
	queue.Done(taken)
	if again, shutdown := queue.Get(); again != key || shutdown {
		t.Errorf("%v, shut down %t", again, shutdown)
	}
	queue.Done(key)
}
