package integration

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// The tests in this file call Reconcile directly, with a real client and a fake clock. Nothing runs beside them, so
// they need no waits.

func newApprover(t *testing.T, clock *clocktesting.FakeClock) (*approver.Reconciler, *events.FakeRecorder) {
	recorder := events.NewFakeRecorder(10)
	return &approver.Reconciler{
		Rules:      []approver.Rule{approver.NodeClient()},
		Client:     admin(t),
		Authorizer: authz.SubjectAccess{Client: admin(t)},
		Reporter:   report.New(recorder, clock),
		Clock:      clock,
		ServerTime: servertime.Of(clock),
		Live:       admin(t),
	}, recorder
}

func reconcileOnce(t *testing.T, r *approver.Reconciler, obj *request) reconcile.Result {
	t.Helper()
	result, err := r.Reconcile(t.Context(), fairqueue.Key{Name: obj.Name, UID: obj.UID})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// cleanOnce makes the cleaner look at obj as if a pass had found it due, and returns whether obj still exists.
func cleanOnce(t *testing.T, r *cleaner.Reconciler, obj *request) (exists bool) {
	t.Helper()
	key := client.ObjectKeyFromObject(obj)
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	if err != nil || result != (reconcile.Result{}) {
		t.Fatalf("result %+v, error %v", result, err)
	}
	err = admin(t).Get(t.Context(), key, &request{})
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil
}

func TestApproverWaitsForRBACAndForgetsItWhenItGoes(t *testing.T) {
	parallel(t)
	grant(t, "stranger", mayCreate)
	obj := createRequest(t, as(t, "stranger"), nodeRequest(t, "late"))
	clock := clocktesting.NewFakeClock(obj.CreationTimestamp.Time)
	r, recorder := newApprover(t, clock)

	for _, step := range []struct{ age, pause time.Duration }{
		{0, time.Second}, {time.Second, time.Second}, {2 * time.Second, 2 * time.Second},
		{4 * time.Second, 4 * time.Second}, {30 * time.Second, 30 * time.Second}, {10 * time.Minute, 5 * time.Minute},
	} {
		clock.SetTime(obj.CreationTimestamp.Add(step.age))
		if got := reconcileOnce(t, r, obj).RequeueAfter; got != step.pause {
			t.Errorf("at the age of %s it comes back after %s, want %s", step.age, got, step.pause)
		}
	}
	if got := len(recorder.Events); got != 1 {
		t.Errorf("%d Events for one outcome, want 1", got)
	}
	if got := csr.StateOf(reload(t, obj)); got != csr.Pending {
		t.Fatalf("refused request is %s, want Pending", got)
	}

	binding := grant(t, "stranger", mayJoin)
	eventuallyAllowed(t, "stranger", true)
	reconcileOnce(t, r, obj)
	want := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: "True", Reason: "AutoApproved",
		Message: "Auto approving kubelet client certificate after SubjectAccessReview.",
	}
	got := reload(t, obj).Status.Conditions[0]
	got.LastTransitionTime, got.LastUpdateTime = want.LastTransitionTime, want.LastUpdateTime
	if got != want {
		t.Errorf("condition is %+v, want %+v", got, want)
	}

	if err := admin(t).Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	eventuallyAllowed(t, "stranger", false)
	next := createRequest(t, as(t, "stranger"), nodeRequest(t, "later"))
	reconcileOnce(t, r, next)
	if got := csr.StateOf(reload(t, next)); got != csr.Pending {
		t.Errorf("request after the binding went is %s, want Pending", got)
	}
}

func TestApproverWritesOnlyWhatItJudged(t *testing.T) {
	parallel(t)
	obj := createRequest(t, admin(t), nodeRequest(t, "stale"))
	r, _ := newApprover(t, clocktesting.NewFakeClock(time.Now()))
	changing := &changingClient{Client: admin(t), before: func() { decide(t, reload(t, obj.DeepCopy()), certificatesv1.CertificateDenied) }}
	r.Client = changing
	reconcileOnce(t, r, obj)
	if got := csr.StateOf(reload(t, obj)); got != csr.Denied {
		t.Errorf("request that was denied in between is %s, want Denied", got)
	}
}

// changingClient changes the object between the read and the write of a reconciler.
type changingClient struct {
	client.Client
	before func()
}

func (c *changingClient) SubResource(name string) client.SubResourceClient {
	c.before()
	return c.Client.SubResource(name)
}

func TestDenialIsOptIn(t *testing.T) {
	parallel(t)
	wrong := func(obj *request) { obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth) }
	for denial, want := range map[approver.Denial]struct {
		state csr.State
		again time.Duration // it can never become valid, so it comes back only to be reported again
	}{
		"": {csr.Pending, report.Again}, approver.DenialNever: {csr.Pending, report.Again}, approver.DenialPermanent: {state: csr.Denied},
	} {
		obj := createRequest(t, admin(t), nodeRequest(t, "denied", wrong))
		r, recorder := newApprover(t, clocktesting.NewFakeClock(time.Now()))
		r.Denial = denial
		if got := reconcileOnce(t, r, obj).RequeueAfter; got != want.again {
			t.Errorf("denial %q: comes back after %s, want %s", denial, got, want.again)
		}
		if got := csr.StateOf(reload(t, obj)); got != want.state {
			t.Errorf("denial %q: request is %s, want %s", denial, got, want.state)
		}
		if len(recorder.Events) != 1 {
			t.Errorf("denial %q: %d Events, want 1", denial, len(recorder.Events))
		}
	}
}

func TestCleanerDeletesWhenDueAndNothingElse(t *testing.T) {
	parallel(t)
	obj := createRequest(t, admin(t), nodeRequest(t, "old"))
	clock := clocktesting.NewFakeClock(obj.CreationTimestamp.Time)
	r := &cleaner.Reconciler{
		Client: admin(t), Clock: clock, ServerTime: servertime.Of(clock),
		Retention: csr.RetentionPolicy{Default: csr.DefaultRetention},
		Limiter:   flowcontrol.NewFakeAlwaysRateLimiter(),
	}
	if !cleanOnce(t, r, obj) {
		t.Fatal("a new request is deleted")
	}
	clock.SetTime(obj.CreationTimestamp.Add(24 * time.Hour))
	if !cleanOnce(t, r, obj) {
		t.Fatal("a waiting request is deleted at the end of its day, want after it")
	}
	approve(t, reload(t, obj))
	approved := obj.Status.Conditions[0].LastUpdateTime.Time
	clock.SetTime(approved.Add(time.Hour))
	if !cleanOnce(t, r, obj) {
		t.Fatal("an approved request is deleted at the end of its hour, want after it")
	}
	clock.SetTime(approved.Add(time.Hour + time.Millisecond))
	if cleanOnce(t, r, obj) {
		t.Error("a due request still exists")
	}
}

func TestCleanerSparesARequestOfTheSameName(t *testing.T) {
	parallel(t)
	first := createRequest(t, admin(t), nodeRequest(t, "twin", func(obj *request) { obj.Name, obj.GenerateName = "twin", "" }))
	clock := clocktesting.NewFakeClock(first.CreationTimestamp.Add(25 * time.Hour))
	stale := first.DeepCopy()
	if err := admin(t).Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	second := createRequest(t, admin(t), nodeRequest(t, "twin", func(obj *request) { obj.Name, obj.GenerateName = "twin", "" }))
	r := &cleaner.Reconciler{
		Client: staleClient{Client: admin(t), obj: stale}, Clock: clock, ServerTime: servertime.Of(clock),
		Retention: csr.RetentionPolicy{Default: csr.DefaultRetention},
		Limiter:   flowcontrol.NewFakeAlwaysRateLimiter(),
	}
	if !cleanOnce(t, r, second) {
		t.Error("the new request was not spared")
	}
}
