package cleaner

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
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

// issued adds a certificate that expires after lifetime.
func issued(t *testing.T, lifetime time.Duration) func(*request) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(lifetime)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return func(obj *request) {
		obj.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
}

// trimmed returns obj as the manager's cache holds it.
func trimmed(t *testing.T, obj *request) *request {
	t.Helper()
	held, err := csr.Trim{Ours: func(string) bool { return false }}.Transform(obj)
	if err != nil {
		t.Fatal(err)
	}
	return held.(*request)
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
		Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, Limiter: limiter, Client: reads,
		ServerTime: servertime.Of(clocktesting.NewFakePassiveClock(at)),
	}, deleted, limiter
}

// reconcileOnce returns the error of a Reconcile, or an empty string.
func reconcileOnce(t *testing.T, r *Reconciler) string {
	t.Helper()
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "csr-1"}})
	if result != (reconcile.Result{}) {
		t.Errorf("again: %+v", result)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func TestReconcileDeletesWhenDue(t *testing.T) {
	t.Parallel()
	const hour, day = time.Hour, 24 * time.Hour
	leaving := func(obj *request) { obj.DeletionTimestamp = &metav1.Time{Time: now} }
	for name, test := range map[string]struct {
		change []func(*request)
		keep   csr.Retention
		age    time.Duration
		gone   bool
	}{
		"pending":                       {},
		"pending for 23 hours":          {age: 23 * hour},
		"pending, due in ten minutes":   {age: day - 10*time.Minute},
		"pending, nearly due":           {age: day - time.Minute},
		"pending, exactly due":          {age: day}, // "older" is strict, as in kube-controller-manager
		"pending, a nanosecond overdue": {age: day + 1, gone: true},
		"pending, long ago":             {age: 1000 * day, gone: true},
		"approved":                      {change: []func(*request){with("Approved")}, age: 55 * time.Minute},
		"approved, due":                 {change: []func(*request){with("Approved")}, age: hour + 1, gone: true},
		"denied, due":                   {change: []func(*request){with("Denied")}, age: hour + 1, gone: true},
		"failed, due":                   {change: []func(*request){with("Failed")}, age: hour + 1, gone: true},
		"unknown condition":             {change: []func(*request){with("Vetted")}, age: hour + 1},
		"kept for ever":                 {keep: csr.Retention{Pending: -1}, age: 1000 * day},
		"being deleted":                 {change: []func(*request){leaving}, age: 1000 * day},
		"created in the future":         {age: -hour},
		"issued":                        {change: []func(*request){with("Approved"), issued(t, 2*hour)}, age: 55 * time.Minute},
		"certificate expires":           {change: []func(*request){with("Approved"), issued(t, 10*time.Minute)}, age: 10*time.Minute - time.Second},
		"certificate has expired":       {change: []func(*request){with("Approved"), issued(t, 10*time.Minute)}, age: 10*time.Minute + 1, gone: true},
	} {
		for _, form := range []string{"whole", "trimmed"} {
			t.Run(name+", "+form, func(t *testing.T) {
				t.Parallel()
				served := object(test.change...)
				if form == "trimmed" {
					served = trimmed(t, served)
				}
				before := served.DeepCopy()
				r, deleted, limiter := newReconciler(served, now.Add(test.age), nil, nil)
				if test.keep != (csr.Retention{}) {
					r.Retention.Default = test.keep
				}
				if problem := reconcileOnce(t, r); problem != "" {
					t.Error(problem)
				}
				var want []deletion
				if test.gone {
					uid, version := types.UID("uid-1"), "7"
					want = []deletion{{"csr-1", client.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}}}
				}
				if diff := cmp.Diff(want, append([]deletion(nil), *deleted...)); diff != "" {
					t.Errorf("deleted (-want +got):\n%s", diff)
				}
				if limiter.waits != 1 {
					t.Errorf("%d waits for the rate", limiter.waits)
				}
				if diff := cmp.Diff(before, served); diff != "" {
					t.Errorf("the cache's object was changed (-before +after):\n%s", diff)
				}
			})
		}
	}
}

func TestReconcileUsesTheSignersOwnRetention(t *testing.T) {
	t.Parallel()
	r, deleted, _ := newReconciler(object(), now.Add(2*time.Minute), nil, nil)
	r.Retention.Signers = map[string]csr.Retention{"example.com/foreign": {Pending: time.Minute}}
	if problem := reconcileOnce(t, r); problem != "" || len(*deleted) != 1 {
		t.Errorf("%d deletions, error %q", len(*deleted), problem)
	}
}

func TestReconcileFaults(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, test := range map[string]struct {
		get, limit, del error
		deletions       int
		want            string
	}{
		"not found":          {get: apierrors.NewNotFound(requests, "csr-1")},
		"cannot be read":     {get: down, want: "read request: down"},
		"stopping":           {limit: context.Canceled},
		"deleted meanwhile":  {del: apierrors.NewNotFound(requests, "csr-1"), deletions: 1},
		"changed meanwhile":  {del: apierrors.NewConflict(requests, "csr-1", down), deletions: 1},
		"cannot be deleted":  {del: down, deletions: 1, want: "delete request: down"},
		"may not be deleted": {del: apierrors.NewForbidden(requests, "csr-1", down), deletions: 1, want: `delete request: certificatesigningrequests.certificates.k8s.io "csr-1" is forbidden: down`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, deleted, limiter := newReconciler(object(), now.Add(25*time.Hour), test.get, test.del)
			limiter.err = test.limit
			if problem := reconcileOnce(t, r); problem != test.want || len(*deleted) != test.deletions {
				t.Errorf("error %q, want %q; %d deletions", problem, test.want, len(*deleted))
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

// apiServer is a server whose clock is ahead of this machine's by a time.Duration.
type apiServer struct{ ahead atomic.Int64 }

// ServeHTTP answers with the time.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Date", time.Now().Add(time.Duration(a.ahead.Load())).UTC().Format(http.TimeFormat))
}

// newServerTime returns the time of an API server whose clock is ahead of this machine's, and a function that sets that
// clock.
func newServerTime(t *testing.T, ahead time.Duration) (*servertime.Clock, func(ahead time.Duration)) {
	t.Helper()
	clocked := &apiServer{}
	set := func(ahead time.Duration) { clocked.ahead.Store(int64(ahead)) }
	set(ahead)
	server := httptest.NewServer(clocked)
	t.Cleanup(server.Close)
	measured, err := servertime.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return measured, set
}

// TestReconcileCountsAgesInServerTime checks that ages count by the API servers' time. A clock that is wrong deletes
// nothing early.
func TestReconcileCountsAgesInServerTime(t *testing.T) {
	t.Parallel()
	const day, hour = 24 * time.Hour, time.Hour
	for name, test := range map[string]struct {
		ahead   time.Duration  // the API server's clock
		step    *time.Duration // which it is ahead after it was noted
		age     time.Duration  // of the request, by this machine's clock
		gone    bool
		unknown bool
	}{
		"both clocks agree":                             {age: day + time.Minute, gone: true},
		"this clock is set forward by 25 h":             {ahead: -25 * hour, age: 25 * hour},
		"this clock is an hour behind":                  {ahead: hour, age: 23*hour + time.Minute, gone: true},
		"this clock is a year behind":                   {ahead: 365 * day, age: -365 * day},
		"the API server's clock is set forward by 25 h": {step: new(25 * hour), unknown: true},
		"the API server's clock is set back by 2 days":  {step: new(-2 * day), age: 2 * day},
		"it is set back, and the request is due still":  {step: new(-2 * day), age: 4 * day, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			obj := object(func(obj *request) { obj.CreationTimestamp = metav1.NewTime(time.Now().Add(-test.age)) })
			r, deleted, _ := newReconciler(obj, now, nil, nil)
			var set func(time.Duration)
			r.ServerTime, set = newServerTime(t, test.ahead)
			if test.step != nil {
				if _, err := r.ServerTime.Now(t.Context()); err != nil {
					t.Fatal(err)
				}
				set(*test.step)
				if *test.step > 0 { // another call notes it
					_, _ = r.ServerTime.Fresh(t.Context())
				}
			}
			problem := reconcileOnce(t, r)
			if gone := len(*deleted) == 1; gone != test.gone || strings.Contains(problem, "is not known") != test.unknown {
				t.Errorf("deleted %t, want %t; error %q", gone, test.gone, problem)
			}
		})
	}
}

// TestReconcileNeedsServerTime checks that nothing is deleted while no API server tells the time, and that the rate
// bounds the attempts.
func TestReconcileNeedsServerTime(t *testing.T) {
	t.Parallel()
	r, deleted, limiter := newReconciler(object(), now.Add(1000*time.Hour), nil, nil)
	r.ServerTime = &servertime.Clock{}
	problem := reconcileOnce(t, r)
	if len(*deleted) > 0 || limiter.waits != 1 || problem != "the time of the API servers is not known: no API server can be asked" {
		t.Errorf("%d deletions, %d waits, error %q", len(*deleted), limiter.waits, problem)
	}
}

func TestDryRunDeletesNothing(t *testing.T) {
	t.Parallel()
	r, deleted, limiter := newReconciler(object(with("Denied")), now.Add(2*time.Hour), nil, nil)
	recorder := events.NewFakeRecorder(10)
	r.DryRun, r.Reporter = true, report.New(recorder, clocktesting.NewFakePassiveClock(now.Add(2*time.Hour)))
	for range 3 {
		if problem := reconcileOnce(t, r); problem != "" {
			t.Error(problem)
		}
	}
	if len(*deleted) != 0 || limiter.waits != 0 {
		t.Fatalf("%d deletions, %d waits", len(*deleted), limiter.waits)
	}
	var told []string
	for len(recorder.Events) > 0 {
		told = append(told, <-recorder.Events)
	}
	want := []string{"Normal WouldDelete Due: the request is Denied and due for deletion since 2026-03-01T13:00:00Z"}
	if !slices.Equal(told, want) {
		t.Errorf("%q, want %q", told, want)
	}
}
