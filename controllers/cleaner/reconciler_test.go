package cleaner

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/servertimetest"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

type request = certificatesv1.CertificateSigningRequest

var (
	now      = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	requests = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
)

// object returns a pending request that was created now, for a signer that is not configured.
func object(modify ...func(*request)) *request {
	obj := &request{ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "uid-1", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(now)}}
	obj.Spec.SignerName = "example.com/foreign"
	for _, change := range modify {
		change(obj)
	}
	return obj
}

func with(kind certificatesv1.RequestConditionType) func(*request) {
	return func(obj *request) {
		obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: "True", LastUpdateTime: metav1.NewTime(now)})
	}
}

// deletion is a call to delete.
type deletion struct {
	Name    string
	Options client.DeleteOptions
}

// allowance is a Limiter that counts calls, or fails.
type allowance struct {
	waits int
	err   error
}

func (a *allowance) TryAccept() bool { return true }
func (a *allowance) Accept()         {}
func (a *allowance) Stop()           {}
func (a *allowance) QPS() float32    { return 0 }
func (a *allowance) Wait(context.Context) error {
	a.waits++
	return a.err
}

// newReconciler returns a Reconciler at the instant at with served in its cache. It records deletions.
func newReconciler(served *request, at time.Time, getFault, deleteFault error) (*Reconciler, *[]deletion, *allowance) {
	deleted, limiter := &[]deletion{}, &allowance{}
	reads := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			if getFault == nil {
				*obj.(*request) = *served
			}
			return getFault
		},
		Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, options ...client.DeleteOption) error {
			called := deletion{Name: obj.GetName()}
			called.Options.ApplyOptions(options)
			*deleted = append(*deleted, called)
			return deleteFault
		},
	}).Build()
	return &Reconciler{
		Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, Limiter: limiter, Client: reads, Clock: clocktesting.NewFakePassiveClock(at),
	}, deleted, limiter
}

func reconcileOnce(t *testing.T, r *Reconciler) (time.Duration, string) {
	t.Helper()
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "csr-1"}})
	if err != nil {
		return result.RequeueAfter, err.Error()
	}
	return result.RequeueAfter, ""
}

func TestReconcileDeletesWhenDue(t *testing.T) {
	t.Parallel()
	const hour, day = time.Hour, 24 * time.Hour
	leaving := func(obj *request) { obj.DeletionTimestamp = &metav1.Time{Time: now} }
	for name, test := range map[string]struct {
		change []func(*request)
		keep   csr.Retention
		age    time.Duration
		again  time.Duration
		gone   bool
	}{
		"pending":                       {},
		"pending for 23 hours":          {age: 23 * hour},
		"pending, in the horizon":       {age: day - horizon, again: horizon + time.Millisecond},
		"pending, beyond the horizon":   {age: day - horizon - 1},
		"pending, nearly due":           {age: day - time.Minute, again: time.Minute + time.Millisecond},
		"pending, exactly due":          {age: day, again: time.Millisecond}, // "older" is strict, as in kube-controller-manager
		"pending, a nanosecond overdue": {age: day + 1, gone: true},
		"pending, long ago":             {age: 1000 * day, gone: true},
		"approved":                      {change: []func(*request){with("Approved")}, age: 55 * time.Minute, again: 5*time.Minute + time.Millisecond},
		"approved, due":                 {change: []func(*request){with("Approved")}, age: hour + 1, gone: true},
		"denied, due":                   {change: []func(*request){with("Denied")}, age: hour + 1, gone: true},
		"failed, due":                   {change: []func(*request){with("Failed")}, age: hour + 1, gone: true},
		"unknown condition":             {change: []func(*request){with("Vetted")}, age: hour + 1},
		"kept for ever":                 {keep: csr.Retention{Pending: -1}, age: 1000 * day},
		"being deleted":                 {change: []func(*request){leaving}, age: 1000 * day},
		"created in the future":         {age: -hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served := object(test.change...)
			before := served.DeepCopy()
			r, deleted, limiter := newReconciler(served, now.Add(test.age), nil, nil)
			if test.keep != (csr.Retention{}) {
				r.Retention.Default = test.keep
			}
			again, problem := reconcileOnce(t, r)
			if again != test.again || problem != "" {
				t.Errorf("again after %s, want %s; error %q", again, test.again, problem)
			}
			var want []deletion
			if test.gone {
				uid, version := types.UID("uid-1"), "7"
				want = []deletion{{"csr-1", client.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}}}
			}
			if diff := cmp.Diff(want, append([]deletion(nil), *deleted...)); diff != "" {
				t.Errorf("deleted (-want +got):\n%s", diff)
			}
			if limiter.waits != len(want) {
				t.Errorf("%d waits for the rate", limiter.waits)
			}
			if diff := cmp.Diff(before, served); diff != "" {
				t.Errorf("the cache's object was changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestReconcileUsesTheSignersOwnRetention(t *testing.T) {
	t.Parallel()
	r, deleted, _ := newReconciler(object(), now.Add(2*time.Minute), nil, nil)
	r.Retention.Signers = map[string]csr.Retention{"example.com/foreign": {Pending: time.Minute}}
	if _, problem := reconcileOnce(t, r); problem != "" || len(*deleted) != 1 {
		t.Errorf("%d deletions, error %q", len(*deleted), problem)
	}
}

func TestReconcileFaults(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, test := range map[string]struct {
		get, limit, del error
		deletions       int
		again           time.Duration
		want            string
	}{
		"not found":          {get: apierrors.NewNotFound(requests, "csr-1")},
		"cannot be read":     {get: down, want: "down"},
		"stopping":           {limit: context.Canceled, want: "wait for the deletion rate: context canceled"},
		"deleted meanwhile":  {del: apierrors.NewNotFound(requests, "csr-1"), deletions: 1, again: 30 * time.Second},
		"changed meanwhile":  {del: apierrors.NewConflict(requests, "csr-1", down), deletions: 1, again: 30 * time.Second},
		"cannot be deleted":  {del: down, deletions: 1, want: "delete request: down"},
		"may not be deleted": {del: apierrors.NewForbidden(requests, "csr-1", down), deletions: 1, want: `delete request: certificatesigningrequests.certificates.k8s.io "csr-1" is forbidden: down`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, deleted, limiter := newReconciler(object(), now.Add(25*time.Hour), test.get, test.del)
			limiter.err = test.limit
			again, problem := reconcileOnce(t, r)
			if problem != test.want || len(*deleted) != test.deletions || again != test.again {
				t.Errorf("error %q, want %q; %d deletions; again after %s, want %s", problem, test.want, len(*deleted), again, test.again)
			}
		})
	}
}

// TestErrorsAreCounted checks that a Reconcile that fails is counted with its reason, and no other.
func TestErrorsAreCounted(t *testing.T) {
	t.Parallel()
	counted := func(reason string) float64 {
		t.Helper()
		value := &dto.Metric{}
		if err := errorsTotal.WithLabelValues(reason).Write(value); err != nil {
			t.Fatal(err)
		}
		return value.GetCounter().GetValue()
	}
	before := counted("Timeout")
	failing, _, _ := newReconciler(object(), now, apierrors.NewTimeoutError("slow", 1), nil)
	fine, _, _ := newReconciler(object(), now, nil, nil)
	for _, r := range []*Reconciler{failing, fine} {
		reconcileOnce(t, r)
	}
	if after := counted("Timeout"); after != before+1 {
		t.Errorf("%v errors are counted, want 1", after-before)
	}
}

// TestReconcileCountsAgesInServerTime checks that ages count by the API servers' time. A clock that is wrong by an
// hour must neither delete early nor late.
func TestReconcileCountsAgesInServerTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		machine, server time.Duration // since the approval, by each clock
		gone            bool
	}{
		"fresh, the clock is an hour ahead": {machine: time.Hour + time.Second, server: time.Second},
		"due, the clock is an hour behind":  {machine: time.Second, server: time.Hour + time.Second, gone: true},
		"fresh, the clock is a year behind": {machine: -365 * 24 * time.Hour, server: time.Second},
		"nearly due, both clocks are right": {machine: time.Hour, server: time.Hour},
		"due by the server's clock only":    {machine: time.Hour, server: time.Hour + 1, gone: true},
	} {
		r, deleted, _ := newReconciler(object(with("Approved")), now.Add(test.machine), nil, nil)
		r.ServerTime = servertime.Apart(r.Clock, clocktesting.NewFakePassiveClock(now.Add(test.server)))
		again, problem := reconcileOnce(t, r)
		if gone := len(*deleted) == 1; gone != test.gone || problem != "" || again > horizon+time.Millisecond {
			t.Errorf("%s: deleted %t, again after %s, error %q", name, gone, again, problem)
		}
	}
}

// TestReconcileMeasuresBeforeItDeletes sets the API server's clock back by two days. A request that is made, or denied, then seems to
// be due.
func TestReconcileMeasuresBeforeItDeletes(t *testing.T) {
	t.Parallel()
	const back = 48 * time.Hour
	server, set := servertimetest.Measured(t)
	set(-back)
	at := func(age time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-back - age)) }
	for name, test := range map[string]struct {
		change func(*request)
		gone   bool
	}{
		"new":            {func(obj *request) { obj.CreationTimestamp = at(0) }, false},
		"just denied":    {func(obj *request) { with("Denied")(obj); obj.Status.Conditions[0].LastUpdateTime = at(0) }, false},
		"due":            {func(obj *request) { obj.CreationTimestamp = at(25 * time.Hour) }, true},
		"denied and due": {func(obj *request) { with("Denied")(obj); obj.Status.Conditions[0].LastUpdateTime = at(2 * time.Hour) }, true},
	} {
		made := object(test.change, func(obj *request) { obj.ResourceVersion = servertimetest.NewVersion() })
		r, deleted, _ := newReconciler(made, now, nil, nil)
		r.ServerTime = server
		_, problem := reconcileOnce(t, r)
		if gone := len(*deleted) == 1; gone != test.gone || problem != "" {
			t.Errorf("%s: deleted %t, error %q", name, gone, problem)
		}
	}
}

// TestReconcileWaitsForServerTime checks that nothing is deleted before the API servers' time is known.
func TestReconcileWaitsForServerTime(t *testing.T) {
	t.Parallel()
	r, deleted, _ := newReconciler(object(), now.Add(1000*time.Hour), nil, nil)
	r.ServerTime = &servertime.Clock{}
	if again, problem := reconcileOnce(t, r); len(*deleted) > 0 || again != time.Second || problem != "" {
		t.Errorf("%d deletions, again after %s, error %q", len(*deleted), again, problem)
	}
}

func TestOverdue(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		age    time.Duration
		change func(*request)
		clock  *servertime.Clock
		want   time.Duration
	}{
		"not due":                 {age: time.Hour},
		"due since ten seconds":   {age: time.Hour + 10*time.Second, want: 10 * time.Second},
		"being deleted":           {age: 2 * time.Hour, change: func(obj *request) { obj.DeletionTimestamp = &metav1.Time{Time: now} }},
		"the time is not known":   {age: 2 * time.Hour, clock: &servertime.Clock{}},
		"the server's clock lags": {age: 2 * time.Hour, clock: servertime.Of(clocktesting.NewFakePassiveClock(now))},
	} {
		obj := object(with("Approved"))
		if test.change != nil {
			test.change(obj)
		}
		r, _, _ := newReconciler(object(), now.Add(test.age), nil, nil)
		r.ServerTime = test.clock
		if got := r.Overdue(obj); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
