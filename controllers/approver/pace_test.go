package approver

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// TestARequesterWithoutApprovalsIsPaced judges requests of a user who lacks the permission. After a thousand judgements,
// twenty requests are judged each second. That holds for no other user and signer and for no young request, and it ends
// with an approval.
func TestARequesterWithoutApprovalsIsPaced(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.served.CreationTimestamp.Time = now.Add(-2 * time.Minute)
	judged := func() bool {
		t.Helper()
		before := len(p.reviews)
		result, err := p.reconcile(t)
		if err != nil {
			t.Fatal(err)
		}
		if waits := len(p.reviews) == before; waits && (result.RequeueAfter < pacedPause || result.RequeueAfter > 2*pacedPause) {
			t.Fatalf("it is not judged, and requeued after %s", result.RequeueAfter)
		}
		return len(p.reviews) > before
	}
	count := func(most int) (number int) {
		t.Helper()
		for number < most && judged() {
			number++
		}
		return number
	}
	if got := count(10_000); got != refusedInARow+pacedPerSecond {
		t.Errorf("%d requests are judged at once, want %d", got, refusedInARow+pacedPerSecond)
	}
	p.clock.SetTime(now.Add(time.Second))
	if got := count(10_000); got != pacedPerSecond {
		t.Errorf("%d requests are judged in a second, want %d", got, pacedPerSecond)
	}

	user, created := p.served.Spec.Username, p.served.CreationTimestamp
	p.served.Spec.Username, p.served.UID = "somebody-else", "another"
	if !judged() {
		t.Error("the request of another user waits")
	}
	p.served.Spec.Username = user
	p.served.CreationTimestamp.Time = p.clock.Now()
	if !judged() {
		t.Error("a young request waits")
	}
	p.served.CreationTimestamp.Time = p.clock.Now().Add(-pacedAfter)
	if judged() {
		t.Error("a request that is just old enough does not wait")
	}
	p.served.CreationTimestamp = created

	p.clock.SetTime(now.Add(2 * time.Second))
	p.grants = []string{"nodeclient"}
	if !judged() || len(p.written) != 1 {
		t.Fatalf("%d approvals", len(p.written))
	}
	counted := &dto.Metric{}
	if err := pacedTotal.WithLabelValues(p.served.Spec.SignerName).Write(counted); err != nil || counted.Counter.GetValue() < 2 {
		t.Errorf("error %v, counted %s, want one at the end of each count", err, counted)
	}
	p.grants, p.served.UID = nil, types.UID("next")
	if got := count(500); got != 500 {
		t.Errorf("after an approval %d requests are judged at once", got)
	}
}

// TestOnlyMissingPermissionsArePaced checks which judgements count for the pace of their requester. A permission that
// is missing for one request is missing for all of them.
func TestOnlyMissingPermissionsArePaced(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result  verdict.Result
		pending bool
		want    int
	}{
		"the permission is missing":     {result: verdict.Result{Verdict: verdict.Wait, Reason: "NotAuthorized"}, want: 1},
		"the requester may never do it": {result: verdict.Result{Verdict: verdict.Ignore, Reason: "NotAuthorized"}},
		"the limit is reached":          {result: verdict.Result{Verdict: verdict.Wait, Reason: "RateLimited"}},
		"an answer is missing":          {result: verdict.Result{Verdict: verdict.Wait, Reason: "InventoryPending"}, pending: true},
	} {
		p := newParts(t, object(t))
		r := p.reconciler
		r.paces.forget("") // makes it ready
		r.refuse(t.Context(), p.served, parse(t, p.served), Decision{Result: test.result, Pending: test.pending})
		got := 0
		if counted := r.paces.of(requesterOf(p.served)); counted != nil {
			got = counted.refused
		}
		if got != test.want {
			t.Errorf("%s: %d judgements count, want %d", name, got, test.want)
		}
	}
}
