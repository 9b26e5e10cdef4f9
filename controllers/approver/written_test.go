package approver

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// liveFunc answers the API server's read of a request.
type liveFunc func(*request) error

func (f liveFunc) Get(ctx context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return f(obj.(*request))
}

func (liveFunc) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("list")
}

// TestALostAnswerAboutADecision checks that a stored decision is recorded once, whatever the write answered. A
// decision that is not stored is never recorded.
func TestALostAnswerAboutADecision(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	conflict, gone := apierrors.NewConflict(requests, "csr-1", down), apierrors.NewNotFound(requests, "csr-1")
	stored := func(p *parts, now *request) error {
		*now = *p.written[0].DeepCopy()
		now.ResourceVersion = "8"
		return nil
	}
	unchanged := func(p *parts, now *request) error { *now = *p.served; return nil }
	unread := func(*parts, *request) error { return down }
	for name, test := range map[string]struct {
		write error
		live  func(p *parts, now *request) error
		fails bool
		then  func(*parts) // a change before the next reconcile, whose writes succeed
		want  string
	}{
		"a conflict with an earlier attempt": {write: conflict, live: stored, want: "Approve"},
		"no answer, stored":                  {write: down, live: stored, want: "Approve"},
		"a conflict with another approver": {write: conflict, live: func(p *parts, now *request) error {
			*now = *p.served.DeepCopy()
			with("Denied")(now)
			now.ResourceVersion = "8"
			return nil
		}, then: func(p *parts) { with("Denied")(p.served) }},
		"a conflict, recreated under the same name": {write: conflict, live: func(p *parts, now *request) error {
			*now = *p.written[0].DeepCopy()
			now.UID, now.ResourceVersion = "another", "8"
			return nil
		}, then: func(p *parts) { p.served.UID = "another"; with("Denied")(p.served) }},
		"a conflict, and no change":    {write: conflict, live: unchanged, fails: true, want: "Approve"},
		"no answer, and not stored":    {write: down, live: unchanged, fails: true, want: "Approve"},
		"no answer, stored later":      {write: down, live: unchanged, fails: true, then: func(p *parts) { p.served = p.written[0] }, want: "Approve"},
		"no answer, reads fail":        {write: down, live: unread, fails: true, then: func(p *parts) { p.served = p.written[0] }, want: "Approve"},
		"a conflict, reads fail":       {write: conflict, live: unread, fails: true, then: func(p *parts) { p.served = p.written[0] }, want: "Approve"},
		"no answer, denied by another": {write: down, live: unread, fails: true, then: func(p *parts) { with("Denied")(p.served) }},
		"gone": {
			write: gone, live: func(*parts, *request) error { return gone }, fails: true, then: func(p *parts) { p.getFault = gone },
		},
		"not found, though it is there":  {write: gone, live: unchanged, fails: true, want: "Approve"},
		"not found, though it is stored": {write: gone, live: stored, want: "Approve"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t))
			p.grants, p.writeFault = []string{"nodeclient"}, test.write
			p.reconciler.limiter = newLimiter(Limit{Burst: 1, PerHour: 1}, p.clock)
			p.reconciler.Live = liveFunc(func(now *request) error { return test.live(p, now) })
			file := filepath.Join(t.TempDir(), "audit.log")
			opened, err := audit.Open(audit.Options{Path: file, MaxSize: 1})
			if err != nil {
				t.Fatal(err)
			}
			p.reconciler.Audit = opened
			if _, err := p.reconcile(t); (err != nil) != test.fails {
				t.Errorf("error %v", err)
			}
			if test.want == "" || test.fails {
				p.writeFault = nil
				if test.then != nil {
					test.then(p)
				}
			} else {
				p.served = p.written[0]
			}
			for range 2 {
				if _, err := p.reconcile(t); err != nil {
					t.Error(err)
				}
				if len(p.written) > 0 && p.writeFault == nil && test.then == nil {
					p.served = p.written[len(p.written)-1]
				}
			}
			if got := verdicts(t, file); got != test.want {
				t.Errorf("recorded %q, want %q", got, test.want)
			}
			if _, kept := p.reconciler.written.Of(p.served); kept && p.getFault != nil {
				t.Error("the decision about a request that is gone takes room for ever")
			}
			if _, within := p.reconciler.limiter.take(parse(t, p.served)); within != (test.want == "") {
				t.Errorf("the requester may have another: %t", within)
			}
		})
	}
}

// TestAStaleCacheDecidesOnce reconciles a request again before the cache shows the decision. The decision is recorded
// once, and counts once for the limit. A request with the same name is another one. After a minute the cache is right,
// because etcd was restored.
func TestAStaleCacheDecidesOnce(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(requests, "csr-1", errors.New("changed"))
	for name, test := range map[string]struct {
		obj   *request
		first error
		want  string
	}{
		"approved":                    {object(t), nil, "Approve"},
		"approved by another replica": {object(t), conflict, "Approve"},
		"denied":                      {object(t, usagesAre("server auth")), nil, "Deny"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, test.obj)
			p.grants, p.writeFault = []string{"nodeclient"}, test.first
			p.reconciler.Denial = DenialPermanent
			p.reconciler.limiter = newLimiter(Limit{Burst: 3, PerHour: 1}, p.clock)
			p.reconciler.Live = liveFunc(func(now *request) error {
				*now = *p.written[0].DeepCopy()
				now.ResourceVersion = "8"
				return nil
			})
			file := filepath.Join(t.TempDir(), "audit.log")
			opened, err := audit.Open(audit.Options{Path: file, MaxSize: 1})
			if err != nil {
				t.Fatal(err)
			}
			p.reconciler.Audit = opened
			for _, again := range []time.Duration{0, decidedFor, decidedFor} {
				if result, err := p.reconcile(t); err != nil || result.RequeueAfter != again {
					t.Errorf("result %+v, error %v", result, err)
				}
				p.writeFault = conflict
			}
			if got := verdicts(t, file); got != test.want || len(p.written) != 1 {
				t.Errorf("recorded %q after %d writes", got, len(p.written))
			}
			if _, within := p.reconciler.limiter.take(parse(t, p.served)); !within {
				t.Error("the approval counts twice")
			}
			p.writeFault, p.reconciler.limiter = nil, newLimiter(Limit{Burst: 3, PerHour: 1}, p.clock)
			p.clock.SetTime(p.clock.Now().Add(decidedFor + 1))
			if _, err := p.reconcile(t); err != nil || len(p.written) != 2 {
				t.Errorf("%d writes, error %v", len(p.written), err)
			}
			p.served.UID = "another"
			if _, err := p.reconcile(t); err != nil || len(p.written) != 3 {
				t.Errorf("%d writes, error %v", len(p.written), err)
			}
		})
	}
}

func parse(t *testing.T, obj *request) *csr.Request {
	t.Helper()
	req, err := csr.Parse(obj)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func verdicts(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var record audit.Record
		if line == "" {
			continue
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		all = append(all, record.Verdict)
	}
	return strings.Join(all, " ")
}
