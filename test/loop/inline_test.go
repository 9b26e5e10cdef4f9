package loop

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
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

func newApprover(t *testing.T, clock *clocktesting.FakeClock) (*approver.Reconciler, *events.FakeRecorder) {
	recorder := events.NewFakeRecorder(10)
	return &approver.Reconciler{
		Rules:      []approver.Rule{approver.NodeClient()},
		Client:     kit.Admin(t),
		Authorizer: authz.SubjectAccess{Client: kit.Admin(t)},
		Reporter:   report.New(recorder, clock),
		Clock:      clock,
		ServerTime: servertime.Of(clock),
		Live:       kit.Admin(t),
	}, recorder
}

func reconcileOnce(t *testing.T, r *approver.Reconciler, obj *kit.Request) reconcile.Result {
	t.Helper()
	result, err := r.Reconcile(t.Context(), fairqueue.Key{Name: obj.Name, UID: obj.UID})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// cleanOnce makes the cleaner look at obj as if a pass had found it due, and returns whether obj still exists.
func cleanOnce(t *testing.T, r *cleaner.Reconciler, obj *kit.Request) (exists bool) {
	t.Helper()
	key := client.ObjectKeyFromObject(obj)
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	if err != nil || result != (reconcile.Result{}) {
		t.Fatalf("result %+v, error %v", result, err)
	}
	err = kit.Admin(t).Get(t.Context(), key, &kit.Request{})
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil
}

func TestApproverWaitsForRBACAndForgetsItWhenItGoes(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	obj := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "late"))
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
	if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Pending {
		t.Fatalf("refused request is %s, want Pending", got)
	}

	binding := kit.Grant(t, "stranger", kit.MayJoin)
	kit.EventuallyAllowed(t, "stranger", true)
	reconcileOnce(t, r, obj)
	want := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: "True", Reason: "AutoApproved",
		Message: "Auto approving kubelet client certificate after SubjectAccessReview.",
	}
	got := kit.Reload(t, obj).Status.Conditions[0]
	got.LastTransitionTime, got.LastUpdateTime = want.LastTransitionTime, want.LastUpdateTime
	if got != want {
		t.Errorf("condition is %+v, want %+v", got, want)
	}

	if err := kit.Admin(t).Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	kit.EventuallyAllowed(t, "stranger", false)
	next := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "later"))
	reconcileOnce(t, r, next)
	if got := csr.StateOf(kit.Reload(t, next)); got != csr.Pending {
		t.Errorf("request after the binding went is %s, want Pending", got)
	}
}

func TestApproverWritesOnlyWhatItJudged(t *testing.T) {
	kit.Parallel(t)
	obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "stale"))
	r, _ := newApprover(t, clocktesting.NewFakeClock(time.Now()))
	changing := &changingClient{Client: kit.Admin(t), before: func() { kit.Decide(t, kit.Reload(t, obj.DeepCopy()), certificatesv1.CertificateDenied) }}
	r.Client = changing
	reconcileOnce(t, r, obj)
	if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Denied {
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
	kit.Parallel(t)
	wrong := func(obj *kit.Request) { obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth) }
	for denial, want := range map[approver.Denial]struct {
		state csr.State
		again time.Duration // it can never become valid, so it comes back only to be reported again
	}{
		"": {csr.Pending, report.Again}, approver.DenialNever: {csr.Pending, report.Again}, approver.DenialPermanent: {state: csr.Denied},
	} {
		obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "denied", wrong))
		r, recorder := newApprover(t, clocktesting.NewFakeClock(time.Now()))
		r.Denial = denial
		if got := reconcileOnce(t, r, obj).RequeueAfter; got != want.again {
			t.Errorf("denial %q: comes back after %s, want %s", denial, got, want.again)
		}
		if got := csr.StateOf(kit.Reload(t, obj)); got != want.state {
			t.Errorf("denial %q: request is %s, want %s", denial, got, want.state)
		}
		if len(recorder.Events) != 1 {
			t.Errorf("denial %q: %d Events, want 1", denial, len(recorder.Events))
		}
	}
}

func TestCleanerDeletesWhenDueAndNothingElse(t *testing.T) {
	kit.Parallel(t)
	obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "old"))
	clock := clocktesting.NewFakeClock(obj.CreationTimestamp.Time)
	r := &cleaner.Reconciler{
		Client: kit.Admin(t), Clock: clock, ServerTime: servertime.Of(clock),
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
	kit.Approve(t, kit.Reload(t, obj))
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
	kit.Parallel(t)
	first := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "twin", func(obj *kit.Request) { obj.Name, obj.GenerateName = "twin", "" }))
	clock := clocktesting.NewFakeClock(first.CreationTimestamp.Add(25 * time.Hour))
	stale := first.DeepCopy()
	if err := kit.Admin(t).Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	second := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "twin", func(obj *kit.Request) { obj.Name, obj.GenerateName = "twin", "" }))
	r := &cleaner.Reconciler{
		Client: kit.StaleClient{Client: kit.Admin(t), Obj: stale}, Clock: clock, ServerTime: servertime.Of(clock),
		Retention: csr.RetentionPolicy{Default: csr.DefaultRetention},
		Limiter:   flowcontrol.NewFakeAlwaysRateLimiter(),
	}
	if !cleanOnce(t, r, second) {
		t.Error("the new request was not spared")
	}
}
