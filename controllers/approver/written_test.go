package approver

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestLostAnswerAboutADecision checks what is recorded and counted after a write without a certain answer, and that the
// next attempt decides what is not decided.
func TestLostAnswerAboutADecision(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	conflict, gone := apierrors.NewConflict(requests, "csr-1", down), apierrors.NewNotFound(requests, "csr-1")
	stored := func(p *parts, live *request) error {
		*live = *p.written[0].DeepCopy()
		live.ResourceVersion = "8"
		return nil
	}
	unchanged := func(p *parts, live *request) error { *live = *p.served; return nil }
	unread := func(*parts, *request) error { return down }
	deleted := func(*parts, *request) error { return gone }
	denied := func(p *parts, live *request) error {
		*live = *p.served.DeepCopy()
		with("Denied")(live)
		live.ResourceVersion = "8"
		return nil
	}
	recreated := func(p *parts, live *request) error {
		*live = *p.written[0].DeepCopy()
		live.UID, live.ResourceVersion = "another", "8"
		return nil
	}
	for name, test := range map[string]struct {
		write error
		live  func(p *parts, live *request) error
		fails bool // the work queue tries again
		want  []string
		taken bool // the approval counts
	}{
		"a conflict with an earlier attempt of client-go": {conflict, stored, false, []string{"Decided Approve"}, true},
		"no answer, stored":                         {down, stored, false, []string{"Decided Approve"}, true},
		"not found, though it is stored":            {gone, stored, false, []string{"Decided Approve"}, true},
		"a conflict with another approver":          {conflict, denied, false, []string{"Decided Approve", "NotStored Approve"}, false},
		"a conflict, recreated under the same name": {conflict, recreated, false, []string{"Decided Approve", "NotStored Approve"}, false},
		"deleted":                   {gone, deleted, false, []string{"Decided Approve", "NotStored Approve"}, false},
		"a conflict, and no change": {conflict, unchanged, true, []string{"Decided Approve", "NotStored Approve"}, false},
		"no answer, and not stored": {down, unchanged, true, []string{"Decided Approve", "NotStored Approve"}, false},
		"no answer, reads fail":     {down, unread, true, []string{"Decided Approve", "NotStored Approve"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t))
			recorded := p.audited(t)
			p.grants, p.writeFault = []string{"nodeclient"}, test.write
			p.reconciler.limiter = newLimiter(Limit{Burst: 1, PerHour: 1}, p.clock)
			p.reconciler.Live = liveFunc(func(live *request) error { return test.live(p, live) })
			if _, err := p.reconcile(t); (err != nil) != test.fails {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(test.want, recorded()); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
			if limited := p.reconciler.limiter.exceeded(parse(t, p.served)); (limited.Reason != "") != test.taken {
				t.Errorf("another approval: %+v", limited)
			}
			if test.taken {
				return
			}
			p.writeFault = nil
			if _, err := p.reconcile(t); err != nil || len(p.written) != 2 {
				t.Errorf("the next attempt: %d writes, error %v", len(p.written), err)
			}
		})
	}
}
