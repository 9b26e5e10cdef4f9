package approver

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestFailedWritesUseUpNoLimit checks that an approval whose write failed does not count.
func TestFailedWritesUseUpNoLimit(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.grants = []string{"nodeclient"}
	p.reconciler.limiter = newLimiter(Limit{Burst: 2, PerHour: 1}, p.clock)
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "certificatesigningrequests"}, "csr-1", errors.New("changed"))
	for i, fault := range []error{errors.New("down"), conflict, errors.New("down"), conflict} {
		p.writeFault = fault
		if _, err := p.reconcile(t); err != nil || len(p.written) != i+1 { // the request was changed meanwhile
			t.Fatalf("%v after %d attempts to write, of %d", err, len(p.written), i+1)
		}
	}
	p.writeFault = nil
	for i, want := range []string{"Approved", "Approved", "Waits RateLimited"} {
		if got := p.outcome(t); got != want {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	p.clock.SetTime(now.Add(time.Hour + time.Second))
	if first, second := p.outcome(t), p.outcome(t); first != "Approved" || second == "Approved" {
		t.Errorf("an hour later: %s, then %s", first, second)
	}
}

// TestRefusalsUseUpNoLimit checks that only approvals count.
func TestRefusalsUseUpNoLimit(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.reconciler.limiter = newLimiter(Limit{Burst: 1, PerHour: 1}, p.clock)
	for range 3 {
		p.outcome(t)
	}
	p.grants = []string{"nodeclient"}
	if got := p.outcome(t); got != "Approved" {
		t.Errorf("after three refusals: %s", got)
	}
}
