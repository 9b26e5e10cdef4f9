package controllers

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
)

func TestSetupOfNothing(t *testing.T) {
	t.Parallel()
	if err := (Options{}).SetupWithManager(nil); err == nil || err.Error() != "no controller is set in Options: set at least one" {
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

// Errors are retried after 100 ms. Each pause is a third longer than the last, up to a minute. A request with ten
// faults in a row waits for less than six seconds in total.
func TestRetriesAndWorkers(t *testing.T) {
	t.Parallel()
	options := Options{}.controller(0, 5, nil, nil)
	key := reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}
	var pauses []time.Duration
	var first10 time.Duration
	for i := range 30 {
		pauses = append(pauses, options.RateLimiter.When(key))
		if i < 10 {
			first10 += pauses[i]
		}
	}
	if pauses[0] != 100*time.Millisecond || pauses[1].Round(time.Millisecond) != 133*time.Millisecond || first10 > 6*time.Second || pauses[29] != time.Minute {
		t.Errorf("pauses %v", pauses)
	}
	if failures := options.RateLimiter.NumRequeues(key); failures != 30 {
		t.Errorf("%d failures", failures)
	}
	options.RateLimiter.Forget(key)
	if again := options.RateLimiter.When(key); again != pauses[0] {
		t.Errorf("after a success %s", again)
	}
	if options.MaxConcurrentReconciles != 50 || options.EnableWarmup == nil || *options.EnableWarmup {
		t.Errorf("%+v", options)
	}
	if options.CacheSyncTimeout < 10*365*24*time.Hour {
		t.Errorf("the process ends when no cache has been filled for %s", options.CacheSyncTimeout)
	}
	if workers := (Options{}).controller(2, 5, nil, nil).MaxConcurrentReconciles; workers != 20 {
		t.Errorf("%d goroutines", workers)
	}
}

// TestHangingItemsHoldUpNoOther checks a queue with two slots. It returns two items at once. It returns a third when
// one of them is done or has taken longer than a second.
func TestHangingItemsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		options := Options{}.controller(2, 1, nil, nil)
		queue := options.NewQueue("test", options.RateLimiter)
		taken := make(chan reconcile.Request, 10)
		for range options.MaxConcurrentReconciles {
			go func() {
				for item, shutdown := queue.Get(); !shutdown; item, shutdown = queue.Get() {
					taken <- item // not done, unless the test does it
				}
			}()
		}
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		}
		var got []string
		now := func(want ...string) {
			t.Helper()
			synctest.Wait()
			for len(taken) > 0 {
				got = append(got, (<-taken).Name)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("taken: %v, want %v", got, want)
			}
		}
		now("a", "b")
		queue.Done(reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}})
		now("a", "b", "c")
		time.Sleep(slotTime - time.Millisecond)
		now("a", "b", "c")
		time.Sleep(time.Millisecond)
		now("a", "b", "c", "d", "e")
		queue.Done(reconcile.Request{NamespacedName: types.NamespacedName{Name: "b"}}) // its slot is already free
		queue.ShutDown()
		synctest.Wait()
	})
}

func TestQueueFollowsTheClock(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	var wrapped Queue
	options := Options{Clock: clock, WrapQueue: func(queue Queue) Queue {
		wrapped = queue
		return queue
	}}.controller(1, 1, nil, nil)
	queue := options.NewQueue("test", options.RateLimiter)
	defer queue.ShutDown()
	key := reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}
	queue.AddAfter(key, time.Hour)
	if wrapped == nil || wrapped.Len() != 0 {
		t.Fatalf("wrapped %v", wrapped)
	}
	clock.Step(time.Hour)
	if taken, shutdown := queue.Get(); taken != key || shutdown {
		t.Errorf("%v, shut down %t", taken, shutdown)
	}
	queue.Done(key)
}
