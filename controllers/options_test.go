package controllers

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
)

func TestSetupOfNothing(t *testing.T) {
	t.Parallel()
	if err := (Options{}).SetupWithManager(nil); err == nil || err.Error() != "no controller to run" {
		t.Errorf("error %v", err)
	}
}

func TestSetupNamesTheController(t *testing.T) {
	t.Parallel()
	options := Options{Clock: clocktesting.NewFakeClock(time.Time{}), Signer: &signer.Reconciler{Signers: map[string]signer.Signer{"example.com/a": {}}}}
	if err := options.SetupWithManager(nil); err == nil || err.Error() != "set up csr-signer: signer example.com/a has no KeyPair" {
		t.Errorf("error %v", err)
	}
}

func TestAControllersOwnClockStays(t *testing.T) {
	t.Parallel()
	own, shared := clocktesting.NewFakePassiveClock(time.Time{}), clocktesting.NewFakeClock(time.Time{})
	if firstClock(own, shared) != own || firstClock(nil, shared) != shared || firstClock(nil, nil) != nil {
		t.Error("another clock")
	}
}

// Errors are retried after 200 ms, doubling to a minute: kube-controller-manager begins so, and ends at 1000 s.
func TestRetriesAndWorkers(t *testing.T) {
	t.Parallel()
	options := Options{}.controller(0, 5, nil)
	key := reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}
	var pauses []time.Duration
	for range 12 {
		pauses = append(pauses, options.RateLimiter.When(key))
	}
	if pauses[0] != 200*time.Millisecond || pauses[1] != 400*time.Millisecond || pauses[11] != time.Minute {
		t.Errorf("pauses %v", pauses)
	}
	if options.MaxConcurrentReconciles != 5 || options.EnableWarmup == nil || *options.EnableWarmup || options.NewQueue != nil {
		t.Errorf("%+v", options)
	}
	if options.CacheSyncTimeout < 10*365*24*time.Hour {
		t.Errorf("the process ends when no cache has been filled for %s", options.CacheSyncTimeout)
	}
	if workers := (Options{}).controller(2, 5, nil).MaxConcurrentReconciles; workers != 2 {
		t.Errorf("%d workers", workers)
	}
}

// With a clock of the caller's, delays follow its steps, counted from when the request was taken out.
func TestQueueFollowsTheClock(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	options := Options{Clock: clock, Approver: &approver.Reconciler{}}.controller(1, 1, nil)
	queue := options.NewQueue("test", options.RateLimiter)
	defer queue.ShutDown()
	key := reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}
	queue.Add(key)
	taken, _ := queue.Get()
	clock.Step(time.Hour) // while the reconciler works
	queue.AddAfter(taken, time.Hour)
	queue.Done(taken)
	if again, shutdown := queue.Get(); again != key || shutdown {
		t.Errorf("%v, shut down %t", again, shutdown)
	}
	queue.Done(key)
}
