package controllers

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// earlyLog is a controller that records its calls. A request waits for it if its signer is the controller's.
type earlyLog struct {
	signer    string
	calls     chan string
	reconcile func(name string) (reconcile.Result, error)
	dropped   []string
}

func (e *earlyLog) Waits(obj *csrObject) bool { return obj.Spec.SignerName == e.signer }

func (*earlyLog) Track(*csrObject) {}

func (e *earlyLog) Drop(obj client.Object) { e.dropped = append(e.dropped, obj.GetName()) }

func (e *earlyLog) Reconcile(_ context.Context, key reconcile.Request) (reconcile.Result, error) {
	result, err := reconcile.Result{}, error(nil)
	if e.reconcile != nil {
		result, err = e.reconcile(key.Name)
	}
	e.calls <- key.Name
	return result, err
}

type standbyFixture struct {
	*standby
	clock         *clocktesting.FakeClock
	first, second *earlyLog
}

func newStandbyFixture(workers int) *standbyFixture {
	clock := clocktesting.NewFakeClock(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	f := &standbyFixture{
		standby: &standby{
			lease: &leaderLease{}, clock: clock, log: logr.Discard(), woken: make(chan struct{}, 1),
			requests: map[string]*waitingRequest{}, elected: make(chan struct{}),
		},
		clock: clock,
		first: &earlyLog{signer: "first", calls: make(chan string, 100)}, second: &earlyLog{signer: "second", calls: make(chan string, 100)},
	}
	f.add("first", f.first, workers, nil)
	f.add("second", f.second, workers, nil)
	return f
}

// request returns version of a request that waits for the controller of signer.
func (f *standbyFixture) request(name, signer, version string) *csrObject {
	obj := &csrObject{Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer}}
	obj.Name, obj.UID, obj.ResourceVersion = name, types.UID(name), version
	obj.CreationTimestamp = metav1.NewTime(f.clock.Now().Truncate(time.Second))
	return obj
}

// attempts returns the requests that one step works on, by the controller's order.
func (f *standbyFixture) attempts(t *testing.T, state vacancy) []string {
	t.Helper()
	f.switchTo(state != led)
	f.work(t.Context(), state)
	f.running.Wait()
	var names []string
	for _, each := range []*earlyLog{f.first, f.second} {
		for len(each.calls) > 0 {
			names = append(names, <-each.calls)
		}
	}
	slices.Sort(names)
	return names
}

func (f *standbyFixture) want(t *testing.T, state vacancy, want ...string) {
	t.Helper()
	if got := f.attempts(t, state); !slices.Equal(got, want) {
		t.Errorf("attempts %v, want %v", got, want)
	}
}

func TestStandbyDoesNothingWhileTheLeaderRenews(t *testing.T) {
	f := newStandbyFixture(20)
	f.observe(f.request("a", "first", "1"))
	f.clock.Step(time.Hour)
	f.want(t, led)
	f.observe(f.request("a", "none", "2"))
	if len(f.requests) != 0 {
		t.Errorf("%d requests are kept that do not wait", len(f.requests))
	}
}

func TestStandbyTakesTheNewestOfOldRequestsWithAQuarterOfTheWorkers(t *testing.T) {
	f := newStandbyFixture(8)
	for _, name := range []string{"a", "b", "c"} {
		f.observe(f.request(name, "first", "1"))
		f.clock.Step(time.Second)
	}
	f.clock.Step(500 * time.Millisecond)
	f.observe(f.request("young", "first", "1"))
	f.clock.Step(500 * time.Millisecond)
	release := make(chan struct{})
	f.first.reconcile = func(string) (reconcile.Result, error) { <-release; return reconcile.Result{}, nil }
	f.switchTo(true)
	f.work(t.Context(), silent)
	f.work(t.Context(), silent) // no worker is free
	close(release)
	f.running.Wait()
	close(f.first.calls)
	var got []string
	for name := range f.first.calls {
		got = append(got, name)
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("attempts %v, want the newest two that are older than two seconds", got)
	}
}

func TestStandbyTakesYoungRequestsAfterARelease(t *testing.T) {
	f := newStandbyFixture(4)
	f.observe(f.request("young", "first", "1"))
	f.want(t, silent)
	f.want(t, released, "young")
	f.observe(f.request("young", "second", "2")) // approved: it need not wait again
	f.want(t, released, "young")
}

func TestStandbyRepeatsAnAttemptWhenDue(t *testing.T) {
	f := newStandbyFixture(4)
	f.first.reconcile = func(string) (reconcile.Result, error) { return reconcile.Result{RequeueAfter: time.Second}, nil }
	f.observe(f.request("a", "first", "1"))
	f.clock.Step(earlyAge)
	f.want(t, silent, "a")
	f.want(t, silent)
	f.clock.Step(time.Second)
	f.want(t, silent, "a")
	f.answered("a")
	f.want(t, silent, "a")
	f.observe(f.request("a", "first", "2"))
	f.want(t, silent, "a")
	f.first.reconcile = nil // nothing is left to do
	f.clock.Step(time.Second)
	f.want(t, silent, "a")
	f.clock.Step(59 * time.Second)
	f.want(t, silent)
}

func TestStandbyForgetsARequestThatNoLongerWaits(t *testing.T) {
	for _, leads := range []bool{false, true} {
		f := newStandbyFixture(4)
		f.observe(f.request("a", "first", "1"))
		f.clock.Step(earlyAge)
		f.want(t, silent, "a")
		f.want(t, led)
		if len(f.first.dropped) > 0 {
			t.Errorf("dropped %v while it waits", f.first.dropped)
		}
		if leads { // the controller tracks the request itself
			f.workers[0].claims.lead()
		}
		f.observe(f.request("a", "none", "2"))
		if dropped := len(f.first.dropped) > 0; dropped == leads || len(f.requests) != 0 {
			t.Errorf("leads %t: dropped %t, %d requests are kept", leads, dropped, len(f.requests))
		}
	}
}

// TestStandbySettlesAnUncertainWrite has a decision without a certain answer. When the object shows that it was
// stored, its controller completes the record, even if the leader has returned.
func TestStandbySettlesAnUncertainWrite(t *testing.T) {
	f := newStandbyFixture(4)
	f.first.reconcile = func(string) (reconcile.Result, error) { return reconcile.Result{}, errors.New("no answer") }
	f.observe(f.request("a", "first", "1"))
	f.clock.Step(earlyAge)
	f.want(t, silent, "a")
	f.want(t, led)
	f.first.reconcile = nil
	f.clock.Step(time.Second)
	f.want(t, led) // the leader handles it
	f.observe(f.request("a", "none", "2"))
	f.want(t, led, "a")
	if len(f.requests) != 0 || !slices.Contains(f.first.dropped, "a") {
		t.Errorf("%d requests are kept, dropped %v", len(f.requests), f.first.dropped)
	}
}

func TestControllerPostponesWhatTheStandbyWorksOn(t *testing.T) {
	c, item := newClaims(), keyOf(&csrObject{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	if !c.begin(item, false) || !c.claimed(item) {
		t.Error("the controller takes a request that the standby works on")
	}
	c.end(item)
	c.lead()
	if c.claimed(item) || c.begin(item, false) {
		t.Error("the standby begins after the controller")
	}
	if !c.begin(item, true) {
		t.Error("the standby settles no earlier write")
	}
}
