package controllers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// liveLease is an API server that holds a Lease.
type liveLease struct {
	client.Reader
	lease *coordinationv1.Lease
	err   error
	reads int
}

func (l *liveLease) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	l.reads++
	if l.err != nil {
		return l.err
	}
	l.lease.DeepCopyInto(obj.(*coordinationv1.Lease))
	return nil
}

type leaseFixture struct {
	*leaderLease
	live  *liveLease
	clock *clocktesting.FakeClock
}

func newLeaseFixture() *leaseFixture {
	clock := clocktesting.NewFakeClock(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	live := &liveLease{}
	return &leaseFixture{&leaderLease{live: live, clock: clock, silence: 2 * time.Second}, live, clock}
}

// renew stores a version of the Lease. With observed, the watch brings it.
func (f *leaseFixture) renew(version int, holder string, observed bool) {
	f.live.lease = &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(version)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder)},
	}
	if observed {
		f.observe(f.live.lease)
	}
}

func (f *leaseFixture) want(t *testing.T, want vacancy) {
	t.Helper()
	if got := f.vacant(t.Context(), logr.Discard()); got != want {
		t.Errorf("vacancy %d, want %d", got, want)
	}
}

func TestLeaderIsGoneAfterTwoSecondsWithoutARenewal(t *testing.T) {
	f := newLeaseFixture()
	f.want(t, led) // no Lease was observed
	for version := range 10 {
		f.renew(version+1, "leader", true)
		f.clock.Step(1900 * time.Millisecond)
		f.want(t, led)
	}
	if f.live.reads > 0 {
		t.Errorf("%d reads while the leader renews", f.live.reads)
	}
	f.clock.Step(100 * time.Millisecond)
	f.want(t, silent)
	f.want(t, silent) // confirmed a moment ago
	if f.live.reads != 1 {
		t.Errorf("%d reads", f.live.reads)
	}
	f.renew(11, "leader", true)
	f.want(t, led)
}

func TestLeaderRenewsButTheWatchIsSilent(t *testing.T) {
	f := newLeaseFixture()
	f.renew(1, "leader", true)
	f.clock.Step(time.Minute)
	f.renew(2, "leader", false)
	f.want(t, led)
}

func TestUnreachableAPIServerIsNoEvidence(t *testing.T) {
	f := newLeaseFixture()
	f.renew(1, "leader", true)
	f.live.err = errors.New("no route to host")
	for range 5 {
		f.clock.Step(3 * time.Second)
		f.want(t, led)
	}
	f.live.err = nil
	f.clock.Step(1900 * time.Millisecond) // the leader needs time after an outage too
	f.want(t, led)
	f.clock.Step(100 * time.Millisecond)
	f.want(t, silent)
}

func TestReleasedLeaseIsVacantAtOnce(t *testing.T) {
	f := newLeaseFixture()
	f.renew(1, "leader", true)
	f.renew(2, "", true)
	f.want(t, released)
	f.clock.Step(time.Second)
	f.renew(3, "another", false)
	f.want(t, led)
}

func TestDeletedLeaseIsNotVacant(t *testing.T) {
	f := newLeaseFixture()
	f.renew(1, "leader", true)
	f.forget()
	f.clock.Step(time.Minute)
	f.want(t, led)
}

func TestOthersAreActiveDuringAGapAndAMinuteAfter(t *testing.T) {
	f := newLeaseFixture()
	active := func(want bool) {
		t.Helper()
		if got := f.othersActive(); got != want {
			t.Errorf("active %t, want %t", got, want)
		}
	}
	active(false)
	f.renew(1, "self", true)
	f.clock.Step(500 * time.Millisecond)
	f.renew(2, "self", true)
	active(false)
	f.clock.Step(time.Second)
	active(true)
	f.renew(3, "self", true)
	for version := range 119 {
		f.clock.Step(500 * time.Millisecond)
		f.renew(4+version, "self", true)
		active(true)
	}
	f.clock.Step(500 * time.Millisecond)
	active(false)
}
