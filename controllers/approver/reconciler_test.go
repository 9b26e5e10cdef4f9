package approver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

type request = certificatesv1.CertificateSigningRequest

var requests = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}

func with(kind certificatesv1.RequestConditionType) func(*request) {
	return func(obj *request) {
		obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: "True"})
	}
}

func malformedRequest(obj *request) { obj.Spec.Request = []byte("nonsense") }

// trim changes obj to what the cache keeps of it.
func trim(t *testing.T, obj *request) {
	t.Helper()
	trimmed, err := csr.Trim{}.Transform(obj.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	*obj = *trimmed.(*request)
}

func serverAuth(obj *request) { obj.Spec.Usages = append(obj.Spec.Usages, "server auth") }

const (
	selfMessage  = "Auto approving self kubelet client certificate after SubjectAccessReview."
	otherMessage = "Auto approving kubelet client certificate after SubjectAccessReview."
	noPEM        = "spec.request is not a PEM block of type CERTIFICATE REQUEST; a new request is needed"
	badUsages    = "the request for signer kubernetes.io/kube-apiserver-client-kubelet is not approved: usages did not match [client auth digital signature key encipherment]; a new request is needed"
)

func TestReconcileDecides(t *testing.T) {
	t.Parallel()
	const notAuthorized = `Warning NotAuthorized user "system:bootstrap:abcdef" with groups ["system:bootstrappers"] requests subject "CN=system:node:a,O=system:nodes" ` +
		`but may not create certificatesigningrequests/nodeclient (API group certificates.k8s.io): if this user may join nodes, bind a ClusterRole with this permission to it; the request is checked again within five minutes`
	type condition = certificatesv1.CertificateSigningRequestCondition
	for name, test := range map[string]struct {
		change []func(*request)
		denial Denial
		grants []string
		asked  []string
		want   *condition // nil means that nothing is written
		events []string
		again  time.Duration
	}{
		"a bootstrapper with permission":      {grants: []string{"nodeclient"}, asked: []string{"nodeclient"}, want: &condition{Type: "Approved", Status: "True", Reason: "AutoApproved", Message: otherMessage}},
		"a bootstrapper with the other right": {grants: []string{"selfnodeclient"}, asked: []string{"nodeclient"}, events: []string{notAuthorized}, again: time.Second},
		"a bootstrapper without permission":   {asked: []string{"nodeclient"}, events: []string{notAuthorized}, again: time.Second},
		"refused is not denied":               {denial: DenialPermanent, asked: []string{"nodeclient"}, events: []string{notAuthorized}, again: time.Second},
		"a node that may renew": {
			change: []func(*request){user("system:node:a")}, grants: []string{"selfnodeclient", "nodeclient"}, asked: []string{"selfnodeclient"},
			want: &condition{Type: "Approved", Status: "True", Reason: "AutoApproved", Message: selfMessage},
		},
		"a node that may only bootstrap": {
			change: []func(*request){user("system:node:a")}, grants: []string{"nodeclient"}, asked: []string{"selfnodeclient", "nodeclient"},
			want: &condition{Type: "Approved", Status: "True", Reason: "AutoApproved", Message: otherMessage},
		},
		"failed, yet undecided": {
			change: []func(*request){with("Failed")}, grants: []string{"nodeclient"}, asked: []string{"nodeclient"},
			want: &condition{Type: "Approved", Status: "True", Reason: "AutoApproved", Message: otherMessage},
		},
		"an unknown condition": {
			change: []func(*request){with("Vetted")}, grants: []string{"nodeclient"}, asked: []string{"nodeclient"},
			want: &condition{Type: "Approved", Status: "True", Reason: "AutoApproved", Message: otherMessage},
		},

		"another signer":            {change: []func(*request){func(obj *request) { obj.Spec.SignerName = "kubernetes.io/kubelet-serving" }}, grants: []string{"nodeclient"}},
		"another signer, malformed": {change: []func(*request){malformedRequest, func(obj *request) { obj.Spec.SignerName = "example.com/a" }}, denial: DenialPermanent},
		"approved already":          {change: []func(*request){with("Approved")}, grants: []string{"nodeclient"}},
		"denied already":            {change: []func(*request){with("Denied")}, grants: []string{"nodeclient"}},
		"issued and trimmed":        {change: []func(*request){func(obj *request) { obj.Status.Certificate = []byte("x"); trim(t, obj) }}, grants: []string{"nodeclient"}},
		"issued already":            {change: []func(*request){func(obj *request) { obj.Status.Certificate = []byte("x") }}, grants: []string{"nodeclient"}},

		"malformed":              {change: []func(*request){malformedRequest}, grants: []string{"nodeclient"}, events: []string{"Warning Malformed " + noPEM}, again: report.Again},
		"malformed, denied":      {change: []func(*request){malformedRequest}, denial: DenialPermanent, want: &condition{Type: "Denied", Status: "True", Reason: "Malformed", Message: noPEM}, events: []string{"Warning Malformed " + noPEM}},
		"wrong usages":           {change: []func(*request){serverAuth}, denial: DenialNever, grants: []string{"nodeclient"}, events: []string{"Warning ShapeMismatch " + badUsages}, again: report.Again},
		"wrong usages, denied":   {change: []func(*request){serverAuth}, denial: DenialPermanent, want: &condition{Type: "Denied", Status: "True", Reason: "ShapeMismatch", Message: badUsages}, events: []string{"Warning ShapeMismatch " + badUsages}},
		"unknown usage, ignored": {change: []func(*request){func(obj *request) { obj.Spec.Usages = []certificatesv1.KeyUsage{"magic"} }}, events: []string{"Warning ShapeMismatch " + badUsages}, again: report.Again},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t, test.change...))
			p.reconciler.Denial, p.grants = test.denial, test.grants
			before := p.served.DeepCopy()
			var wantWritten []*request
			if test.want != nil {
				judged := p.served.DeepCopy() // with the resourceVersion that was judged
				judged.Status.Conditions = append(judged.Status.Conditions, *test.want)
				wantWritten = append(wantWritten, judged)
			}
			result, err := p.reconcile(t)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wantWritten, p.written); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
			var asked []string
			for _, review := range p.reviews {
				asked = append(asked, review.Subresource)
			}
			if diff := cmp.Diff(test.asked, asked); diff != "" {
				t.Errorf("asked for (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.events, p.events()); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if result.RequeueAfter != test.again {
				t.Errorf("judged again after %s, want %s", result.RequeueAfter, test.again)
			}
			if diff := cmp.Diff(before, p.served); diff != "" {
				t.Errorf("the cache's object was changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestReconcileFaults(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}, "csr-1", nil)
	for name, test := range map[string]struct {
		get, review, write error
		grants             []string
		writes, reads      int
		want               string
		told               []string
		again              time.Duration
	}{
		"gone":                      {get: apierrors.NewNotFound(requests, "csr-1")},
		"cannot be read":            {get: down, want: "down"},
		"review fails":              {review: down, want: "review permission nodeclient of the requester: down"},
		"review says yes and fails": {grants: []string{"nodeclient"}, review: down, want: "review permission nodeclient of the requester: down"},
		"conflict":                  {grants: []string{"nodeclient"}, write: apierrors.NewConflict(requests, "csr-1", down), writes: 1, reads: 1},
		"changed meanwhile":         {grants: []string{"nodeclient"}, write: down, writes: 1, reads: 1},
		"write is forbidden": {
			grants: []string{"nodeclient"}, write: apierrors.NewForbidden(requests, "csr-1", down), writes: 1, reads: 1, again: time.Second,
			told: []string{`Warning NotStored the API server refuses to store the verdict Approve about this request: certificatesigningrequests.certificates.k8s.io "csr-1" is forbidden: down; correct the role or the admission policy, and the request is checked again within five minutes`},
		},
		"a webhook refuses without a code": {
			grants: []string{"nodeclient"}, write: apierrors.NewBadRequest("not today"), writes: 1, reads: 1, again: time.Second,
			told: []string{`Warning NotStored the API server refuses to store the verdict Approve about this request: not today; correct the role or the admission policy, and the request is checked again within five minutes`},
		},
		"write is invalid": {
			grants: []string{"nodeclient"}, write: invalid, writes: 1, reads: 1, again: time.Second,
			told: []string{`Warning NotStored the API server refuses to store the verdict Approve about this request: CertificateSigningRequest.certificates.k8s.io "csr-1" is invalid; correct the role or the admission policy, and the request is checked again within five minutes`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t))
			p.getFault, p.fault, p.writeFault, p.grants = test.get, test.review, test.write, test.grants
			live, reads := p.reconciler.Live, 0
			p.reconciler.Live = liveFunc(func(now *request) error {
				reads++
				return live.Get(t.Context(), client.ObjectKeyFromObject(p.served), now)
			})
			result, err := p.reconcile(t)
			if result.RequeueAfter != test.again {
				t.Errorf("judged again after %s, want %s", result.RequeueAfter, test.again)
			}
			if reads != test.reads {
				t.Errorf("%d reads after the write, want %d", reads, test.reads)
			}
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if len(p.written) != test.writes {
				t.Errorf("%d writes, want %d", len(p.written), test.writes)
			}
			if diff := cmp.Diff(test.told, p.events()); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPauseDoubles checks that a waiting request is requeued after its age, so the pause doubles from a second to
// five minutes.
func TestPauseDoubles(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Second, 0: time.Second, time.Second: time.Second, 3 * time.Second: 3 * time.Second,
		59 * time.Second: 59 * time.Second, time.Hour: 5 * time.Minute,
	} {
		p := newParts(t, object(t))
		p.clock.SetTime(now.Add(age))
		result, err := p.reconcile(t)
		if err != nil || result.RequeueAfter != want {
			t.Errorf("at the age of %s: %+v, error %v, want %s", age, result, err, want)
		}
	}
}

// TestAnotherUIDEndsTheAttempt checks that a key of a deleted request does not act on a new request of its name.
func TestAnotherUIDEndsTheAttempt(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.grants = []string{"nodeclient"}
	key := fairqueue.KeyOf(p.served, p.reconciler.RequestLimits.NodeOf(p.served))
	p.served.UID = "another"
	if result, err := p.reconciler.Reconcile(t.Context(), key); err != nil || result != (reconcile.Result{}) || len(p.reviews) > 0 {
		t.Errorf("%+v, error %v, %d reviews", result, err, len(p.reviews))
	}
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
		t.Errorf("the new request: %d writes, error %v", len(p.written), err)
	}
}

// TestBlockedDuringTheReview checks that a node that is put on the block list while its review is under way is not
// approved.
func TestBlockedDuringTheReview(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	list := blockList(t, "")
	p.reconciler.BlockList = list
	p.reconciler.Authorizer = authz.Func(func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
		list.Offer(blocking("a"))
		return true, nil
	})
	if _, err := p.reconcile(t); err != nil || len(p.written) > 0 {
		t.Fatalf("%d writes, error %v", len(p.written), err)
	}
	if told := p.events(); len(told) != 1 || !strings.HasPrefix(told[0], "Warning NodeBlocked") {
		t.Errorf("Events %q", told)
	}
}

// TestInventoryPendingIsReportedLate checks that a request that waits for a source asks again soon, and reports that when
// it is ten seconds old. The pause is random, so that requests that were refused together do not come back together.
func TestInventoryPendingIsReportedLate(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.reconciler.Rules[0].Judge = func(context.Context, *csr.Request) (Decision, error) {
		return Decision{Result: verdict.Wait.Because("InventoryPending", "the source has no answer yet")}, nil
	}
	for _, test := range []struct {
		age, most time.Duration
		told      int
	}{
		{-time.Hour, 1100 * time.Millisecond, 0}, // the clock of the API server was set back
		{0, 1100 * time.Millisecond, 0}, {8 * time.Second, 2100 * time.Millisecond, 0}, {10 * time.Second, 2350 * time.Millisecond, 1},
		{80 * time.Second, 11100 * time.Millisecond, 0}, {30 * time.Minute, 30100 * time.Millisecond, 0},
	} {
		p.clock.SetTime(now.Add(test.age))
		shortest, longest := time.Hour, time.Duration(0)
		for range 200 {
			result, err := p.reconcile(t)
			if err != nil {
				t.Fatal(err)
			}
			shortest, longest = min(shortest, result.RequeueAfter), max(longest, result.RequeueAfter)
		}
		if shortest < 100*time.Millisecond || longest > test.most || shortest > test.most/4 || longest < test.most*3/4 {
			t.Errorf("at %s: pauses from %s to %s, want from 100ms to %s", test.age, shortest, longest, test.most)
		}
		if told := p.events(); len(told) != test.told {
			t.Errorf("at %s: Events %q, want %d", test.age, told, test.told)
		}
	}
}

func TestARefusalIsToldOnce(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	for range 5 {
		if _, err := p.reconcile(t); err != nil {
			t.Fatal(err)
		}
		p.clock.SetTime(p.clock.Now().Add(time.Minute))
	}
	if told := p.events(); len(told) != 1 || len(p.reviews) != 5 {
		t.Errorf("%d Events for %d reviews", len(told), len(p.reviews))
	}
	p.grants = []string{"nodeclient"} // RBAC that is granted late
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
		t.Errorf("%d writes, error %v", len(p.written), err)
	}
}

// TestFailedReconcilesAreCounted checks that a reconcile counts as failed if it returns an error, and if the API server
// refuses its write.
func TestFailedReconcilesAreCounted(t *testing.T) {
	t.Parallel()
	reason := "InternalError" // which no other test causes
	count := func() float64 {
		counted := &dto.Metric{}
		if err := errorsTotal.WithLabelValues(reason).Write(counted); err != nil {
			t.Fatal(err)
		}
		return counted.Counter.GetValue()
	}
	p := newParts(t, object(t))
	before := count()
	p.getFault = apierrors.NewInternalError(errors.New("down"))
	if _, err := p.reconcile(t); err == nil || count() != before+1 {
		t.Errorf("error %v, %g reconciles are counted, want one more than %g", err, count(), before)
	}
	p.getFault, p.grants = nil, []string{"nodeclient"}
	reason = "Forbidden"
	before = count()
	p.writeFault = apierrors.NewForbidden(requests, "csr-1", errors.New("no"))
	if _, err := p.reconcile(t); err != nil || count() <= before { // other tests cause it too
		t.Errorf("error %v, a refused write is not counted", err)
	}
	reason = "InternalError"
	before = count()
	p.writeFault = nil
	if _, err := p.reconcile(t); err != nil || count() != before || len(p.written) == 0 {
		t.Errorf("error %v, %d writes, %g reconciles are counted after a success", err, len(p.written), count()-before)
	}
}

// TestGateAndConfirmSurroundTheReview checks the order of Gate, review and Confirm, and that each of them ends the
// judgement if it refuses or fails.
func TestGateAndConfirmSurroundTheReview(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	refused := Decision{Result: verdict.Result{Verdict: verdict.Wait, Reason: "Refused", Message: "no"}}
	for name, test := range map[string]struct {
		gate, confirm       Decision
		gateErr, confirmErr error
		denied              bool
		want, steps         string
	}{
		"all permit":               {want: "AutoApproved", steps: "gate review confirm"},
		"Gate refuses":             {gate: refused, want: "Refused", steps: "gate"},
		"Gate fails":               {gateErr: down, want: "down", steps: "gate"},
		"the requester may not":    {denied: true, want: "NotAuthorized", steps: "gate review"},
		"Confirm refuses":          {confirm: refused, want: "Refused", steps: "gate review confirm"},
		"Confirm fails":            {confirmErr: down, want: "down", steps: "gate review confirm"},
		"Confirm fails in refusal": {confirm: refused, confirmErr: down, want: "down", steps: "gate review confirm"},
	} {
		var steps []string
		step := func(name string, decision Decision, err error) Judge {
			return func(context.Context, *csr.Request) (Decision, error) {
				steps = append(steps, name)
				return decision, err
			}
		}
		rule := NodeClient()
		rule.Recognisers[1].Gate, rule.Recognisers[1].Confirm = step("gate", test.gate, test.gateErr), step("confirm", test.confirm, test.confirmErr)
		p := newParts(t, object(t))
		p.reconciler.Rules = []Rule{rule}
		p.reconciler.Authorizer = authz.Func(func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
			steps = append(steps, "review")
			return !test.denied, nil
		})
		_, decision, err := p.reconciler.Decide(t.Context(), p.served)
		got := decision.Reason
		if err != nil {
			got = err.Error()
		}
		if got != test.want || strings.Join(steps, " ") != test.steps {
			t.Errorf("%s: %s after %q, want %s after %q", name, got, steps, test.want, test.steps)
		}
	}
}

// TestReviewsAreMeasuredByResult checks the label of each result in the metric of reviews.
func TestReviewsAreMeasuredByResult(t *testing.T) {
	t.Parallel()
	count := func(result string) uint64 {
		observed := &dto.Metric{}
		if err := reviewSeconds.WithLabelValues(result).(interface{ Write(*dto.Metric) error }).Write(observed); err != nil {
			t.Fatal(err)
		}
		return observed.Histogram.GetSampleCount()
	}
	down := errors.New("down")
	for want, test := range map[string]struct {
		allowed bool
		err     error
	}{"allowed": {allowed: true}, "refused": {}, "error": {allowed: true, err: down}} {
		before := count(want)
		review := measured{authz.Func(func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
			return test.allowed, test.err
		})}
		allowed, err := review.Allowed(t.Context(), csr.Requester{}, authorizationv1.ResourceAttributes{})
		if allowed != test.allowed || !errors.Is(err, test.err) || count(want) != before+1 {
			t.Errorf("%s: %t, error %v, %d reviews, want one more than %d", want, allowed, err, count(want), before)
		}
	}
}

// TestEndOfAttemptIsNoDecision checks that a rule whose lookups end with their context decides nothing.
func TestEndOfAttemptIsNoDecision(t *testing.T) {
	t.Parallel()
	ended := errors.New("the manager stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	p := newParts(t, object(t))
	p.reconciler.Rules[0].Judge = func(context.Context, *csr.Request) (Decision, error) {
		cancel(ended)
		return Decision{Result: verdict.Wait.Because("InventoryUnavailable", "canceled")}, nil
	}
	if _, decision, err := p.reconciler.Decide(ctx, p.served); !errors.Is(err, ended) || decision != (Decision{}) {
		t.Errorf("%+v, %v", decision, err)
	}
}
