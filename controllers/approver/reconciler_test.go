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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/servertimetest"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
func serverAuth(obj *request)       { obj.Spec.Usages = append(obj.Spec.Usages, "server auth") }

const (
	selfMessage  = "Auto approving self kubelet client certificate after SubjectAccessReview."
	otherMessage = "Auto approving kubelet client certificate after SubjectAccessReview."
	noPEM        = "spec.request is not a PEM block of type CERTIFICATE REQUEST; a new request is needed"
	badUsages    = "the request for signer kubernetes.io/kube-apiserver-client-kubelet is not approved: usages did not match [client auth digital signature key encipherment]; a new request is needed"
)

func TestReconcileDecides(t *testing.T) {
	t.Parallel()
	const notAuthorized = `Warning NotAuthorized user "system:bootstrap:abcdef" with groups ["system:bootstrappers"] requests subject "CN=system:node:a,O=system:nodes" ` +
		`but may not create certificatesigningrequests/nodeclient (API group certificates.k8s.io): if this user may join nodes, bind a ClusterRole with this permission to it; the request is checked again within a minute`
	type condition = certificatesv1.CertificateSigningRequestCondition
	for name, test := range map[string]struct {
		change []func(*request)
		denial Denial
		grants []string
		asked  []string
		want   *condition // nil means that nothing is written
		events []string
		again  bool
	}{
		"a bootstrapper with permission":      {grants: []string{"nodeclient"}, asked: []string{"nodeclient"}, want: &condition{Type: "Approved", Status: "True", Reason: "AutoApproved", Message: otherMessage}},
		"a bootstrapper with the other right": {grants: []string{"selfnodeclient"}, asked: []string{"nodeclient"}, events: []string{notAuthorized}, again: true},
		"a bootstrapper without permission":   {asked: []string{"nodeclient"}, events: []string{notAuthorized}, again: true},
		"refused is not denied":               {denial: DenialPermanent, asked: []string{"nodeclient"}, events: []string{notAuthorized}, again: true},
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
		"issued already":            {change: []func(*request){func(obj *request) { obj.Status.Certificate = []byte("x") }}, grants: []string{"nodeclient"}},

		"malformed":              {change: []func(*request){malformedRequest}, grants: []string{"nodeclient"}, events: []string{"Warning Malformed " + noPEM}},
		"malformed, denied":      {change: []func(*request){malformedRequest}, denial: DenialPermanent, want: &condition{Type: "Denied", Status: "True", Reason: "Malformed", Message: noPEM}, events: []string{"Warning Malformed " + noPEM}},
		"wrong usages":           {change: []func(*request){serverAuth}, denial: DenialNever, grants: []string{"nodeclient"}, events: []string{"Warning ShapeMismatch " + badUsages}},
		"wrong usages, denied":   {change: []func(*request){serverAuth}, denial: DenialPermanent, want: &condition{Type: "Denied", Status: "True", Reason: "ShapeMismatch", Message: badUsages}, events: []string{"Warning ShapeMismatch " + badUsages}},
		"unknown usage, ignored": {change: []func(*request){func(obj *request) { obj.Spec.Usages = []certificatesv1.KeyUsage{"magic"} }}, events: []string{"Warning ShapeMismatch " + badUsages}},
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
			if again := result.RequeueAfter > 0; again != test.again {
				t.Errorf("looked at again: %t", again)
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
		told               int
	}{
		"gone":                      {get: apierrors.NewNotFound(requests, "csr-1")},
		"cannot be read":            {get: down, want: "down"},
		"review fails":              {review: down, want: "review permission nodeclient of the requester: down"},
		"review says yes and fails": {grants: []string{"nodeclient"}, review: down, want: "review permission nodeclient of the requester: down"},
		"conflict":                  {grants: []string{"nodeclient"}, write: apierrors.NewConflict(requests, "csr-1", down), writes: 1, reads: 1},
		"deleted meanwhile":         {grants: []string{"nodeclient"}, write: apierrors.NewNotFound(requests, "csr-1"), writes: 1, reads: 1, want: "not found"},
		"write fails":               {grants: []string{"nodeclient"}, write: down, writes: 1, reads: 1, want: "update approval: down"},
		"write is forbidden":        {grants: []string{"nodeclient"}, write: apierrors.NewForbidden(requests, "csr-1", down), writes: 1, want: `update approval: certificatesigningrequests.certificates.k8s.io "csr-1" is forbidden: down`},
		"write is invalid":          {grants: []string{"nodeclient"}, write: invalid, writes: 1, told: 1},
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
			_, err := p.reconcile(t)
			if reads != test.reads {
				t.Errorf("%d reads after the write, want %d", reads, test.reads)
			}
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if told := p.events(); len(p.written) != test.writes || len(told) != test.told {
				t.Errorf("%d writes, want %d; Events %q, want %d", len(p.written), test.writes, told, test.told)
			}
		})
	}
}

// TestPauseDoubles checks that a waiting request is requeued after its age, so the pause doubles from a second to a
// minute.
func TestPauseDoubles(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Second, 0: time.Second, time.Second: time.Second, 3 * time.Second: 3 * time.Second,
		59 * time.Second: 59 * time.Second, time.Hour: time.Minute,
	} {
		p := newParts(t, object(t))
		p.clock.SetTime(now.Add(age))
		result, err := p.reconcile(t)
		if err != nil || result.RequeueAfter != want || result.Priority == nil || *result.Priority >= 0 {
			t.Errorf("at the age of %s: %+v, error %v, want %s", age, result, err, want)
		}
	}
}

// TestReconcileMeasuresBeforeARequestIsTooOld sets the API server's clock back by a day. A request that is made then seems to be a day
// old.
func TestReconcileMeasuresBeforeARequestIsTooOld(t *testing.T) {
	t.Parallel()
	server, set := servertimetest.Measured(t)
	const day = 24 * time.Hour
	for _, test := range []struct {
		age, back time.Duration
		approved  bool
	}{{day, 0, false}, {0, day, true}, {day, day, false}} {
		set(-test.back)
		p := newParts(t, object(t, func(obj *request) {
			obj.CreationTimestamp = metav1.NewTime(time.Now().Add(-test.back - test.age))
			obj.ResourceVersion = servertimetest.NewVersion()
		}))
		p.reconciler.ServerTime = server
		p.reconciler.Rules[0].Judge = func(_ context.Context, req *csr.Request) (Decision, error) {
			if server.Since(req.Created) > time.Hour {
				return Decision{Result: verdict.Ignore.Because("RequestTooOld", "too old")}, nil
			}
			return Decision{Result: verdict.Approve.Because("AutoApproved", "new")}, nil
		}
		if result, err := p.reconcile(t); err != nil || result != (reconcile.Result{}) || (len(p.written) == 1) != test.approved {
			t.Errorf("%+v: %+v, error %v, %d writes", test, result, err, len(p.written))
		}
	}
}

// TestReconcileMeasuresOnlyForARequestThatIsTooOld: a measurement costs calls to each API server.
func TestReconcileMeasuresOnlyForARequestThatIsTooOld(t *testing.T) {
	t.Parallel()
	server, set := servertimetest.Measured(t)
	set(-24 * time.Hour)
	p := newParts(t, object(t, func(obj *request) { obj.ResourceVersion = servertimetest.NewVersion() }))
	p.reconciler.ServerTime = server
	if _, err := p.reconcile(t); err != nil {
		t.Fatal(err)
	}
	if behind := time.Since(server.Now()); behind > time.Hour {
		t.Errorf("the time was measured: it is %s behind", behind)
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

// TestApprovedIsCalledAfterAnApproval checks that a signer gets the request as it was judged and as it was stored.
func TestApprovedIsCalledAfterAnApproval(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change     func(*request)
		writeFault error
		want       int
	}{
		"approved":   {func(*request) {}, nil, 1},
		"conflict":   {func(*request) {}, apierrors.NewConflict(requests, "csr-1", nil), 0},
		"no answer":  {func(*request) {}, errors.New("no answer"), 0},
		"denied":     {malformedRequest, nil, 0},
		"no opinion": {with("Approved"), nil, 0},
	} {
		p := newParts(t, object(t, test.change))
		p.grants, p.writeFault, p.reconciler.Denial = []string{"nodeclient"}, test.writeFault, DenialPermanent
		calls := 0
		p.reconciler.Approved = func(judged, approved *request) {
			calls++
			if judged.UID != p.served.UID || !csr.Undecided(judged) || csr.StateOf(approved) != csr.Approved {
				t.Errorf("%s: judged %+v, approved %+v", name, judged.Status, approved.Status)
			}
		}
		_, _ = p.reconcile(t)
		if calls != test.want {
			t.Errorf("%s: %d calls, want %d", name, calls, test.want)
		}
	}
}

// TestFailedReconcilesAreCounted checks that a reconcile counts as failed if and only if it returns an error.
func TestFailedReconcilesAreCounted(t *testing.T) {
	t.Parallel()
	const reason = "InternalError" // which no other test causes
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
	p.getFault = nil
	if _, err := p.reconcile(t); err != nil || count() != before+1 {
		t.Errorf("error %v, %g reconciles are counted after a success", err, count())
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
		step := func(name string, decision Decision, err error) Gate {
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
