package signer

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/servertimetest"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

var requests = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}

const day = 24 * time.Hour

// version returns a change to another resourceVersion.
func version(resourceVersion string) func(*request) {
	return func(obj *request) { obj.ResourceVersion = resourceVersion }
}

func TestReconcileSigns(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*request){
		"approved":                               func(*request) {},
		"approved by hand, years after creation": func(obj *request) { obj.CreationTimestamp = metav1.NewTime(now.AddDate(-2, 0, 0)) },
		"failed is False":                        with("Failed", "False"),
		"an unknown condition":                   with("Vetted", "True"),
		"approved without a time":                func(obj *request) { obj.Status.Conditions[0].LastUpdateTime = metav1.Time{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t, change))
			before := p.served.DeepCopy()
			root := p.load(t, 1000*day)
			if result, err := p.reconcile(t); err != nil || result != (reconcile.Result{}) {
				t.Fatalf("%+v, error %v", result, err)
			}
			if len(p.written) != 1 {
				t.Fatalf("%d writes", len(p.written))
			}
			want := before.DeepCopy() // only the certificate may differ
			want.Status.Certificate = p.written[0].Status.Certificate
			if diff := cmp.Diff(want, p.written[0]); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, p.served); diff != "" {
				t.Errorf("the cache's object was changed (-before +after):\n%s", diff)
			}
			certs, err := ca.ParseCertificates(p.written[0].Status.Certificate)
			if err != nil || len(certs) != 1 {
				t.Fatalf("%d certificates, error %v", len(certs), err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(root.cert)
			if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Error(err)
			}
			got := []any{certs[0].Subject.String(), certs[0].KeyUsage, certs[0].NotAfter.Sub(certs[0].NotBefore), leafKey().PublicKey.Equal(certs[0].PublicKey.(*ecdsa.PublicKey))}
			if diff := cmp.Diff([]any{"CN=system:node:a,O=system:nodes", x509.KeyUsageDigitalSignature, 365 * day, true}, got); diff != "" {
				t.Errorf("certificate (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReconcileLeavesAlone(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*request){
		"pending":            func(obj *request) { obj.Status.Conditions = nil },
		"denied":             with("Denied", "True"),
		"denied only":        func(obj *request) { obj.Status.Conditions[0].Type = "Denied" },
		"denied, no status":  with("Denied", ""),
		"failed":             with("Failed", "True"),
		"failed, no status":  with("Failed", ""),
		"issued":             func(obj *request) { obj.Status.Certificate = []byte("whatever") },
		"another signer":     signerName("example.com/foreign"),
		"another, malformed": func(obj *request) { obj.Spec.SignerName, obj.Spec.Request = "example.com/foreign", nil },
		"issued, trimmed":    func(obj *request) { obj.Status.Certificate = []byte("whatever"); trimmed(obj, nil) },
		"denied, trimmed":    func(obj *request) { with("Denied", "True")(obj); trimmed(obj, nil) },
		"failed, trimmed":    func(obj *request) { with("Failed", "True")(obj); trimmed(obj, nil) },
		"approved, but trimmed by a cache of another configuration": func(obj *request) { trimmed(obj, func(string) bool { return false }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t, change))
			p.load(t, 1000*day)
			result, err := p.reconcile(t)
			if err != nil || result != (reconcile.Result{}) || len(p.written) > 0 {
				t.Errorf("%+v, error %v, %d writes", result, err, len(p.written))
			}
			if told := taken(p.recorder); len(told) > 0 {
				t.Errorf("Events %q", told)
			}
		})
	}
}

// trimmed makes obj what a cache keeps of it.
func trimmed(obj *request, ours func(signerName string) bool) {
	trimmed, err := csr.Trim{Ours: ours}.Transform(obj.DeepCopy())
	*obj = *must(trimmed.(*request), err)
}

// TestReconcileFailsATooLargeTrimmedRequest checks that a request above the limits, of which the cache holds only zeros,
// gets the same condition as the whole request.
func TestReconcileFailsATooLargeTrimmedRequest(t *testing.T) {
	t.Parallel()
	var messages []string
	for _, change := range []func(*request){func(*request) {}, func(obj *request) { trimmed(obj, nil) }} {
		p := newParts(t, object(t, func(obj *request) { obj.Spec.Request = []byte(strings.Repeat("x", 2<<20)) }, change))
		if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
			t.Fatalf("%d writes, error %v", len(p.written), err)
		}
		failed := p.written[0].Status.Conditions[1]
		if failed.Type != "Failed" || failed.Reason != "RequestTooLarge" {
			t.Errorf("condition %+v", failed)
		}
		messages = append(messages, failed.Message)
	}
	if messages[0] != messages[1] {
		t.Errorf("messages differ: %q", messages)
	}
}

// TestReconcileEndsQuietlyForAnotherUID checks that a key does nothing to a request that was made anew under its name.
func TestReconcileEndsQuietlyForAnotherUID(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.load(t, day)
	key := keyOf(p.served)
	key.UID = "earlier"
	if result, err := p.reconciler.Reconcile(t.Context(), key); err != nil || result != (reconcile.Result{}) || len(p.written) > 0 {
		t.Errorf("%+v, error %v, %d writes", result, err, len(p.written))
	}
}

// TestReconcileSignsNoStaleApproval checks that a request that is due for deletion is not signed.
func TestReconcileSignsNoStaleApproval(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*request){
		"a good request": func(*request) {},
		"malformed":      func(obj *request) { obj.Spec.Request = nil },
	} {
		p := newParts(t, object(t, change))
		p.load(t, 1000*day)
		p.clock.SetTime(now.Add(time.Hour + 1))
		result, err := p.reconcile(t)
		if err != nil || result.RequeueAfter != 50*time.Minute || len(p.written) > 0 {
			t.Errorf("%s: %+v, error %v, %d writes", name, result, err, len(p.written))
		}
		want := []string{"Warning RequestTooOld the request is approved, but due for deletion since 2026-03-01T13:00:00Z and no longer signed; a new request is needed"}
		if diff := cmp.Diff(want, taken(p.recorder)); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", name, diff)
		}
	}
}

func TestReconcileSignsUntilTheApprovalIsDue(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.load(t, day)
	p.clock.SetTime(now.Add(time.Hour))
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
		t.Errorf("%d writes, error %v", len(p.written), err)
	}
}

func TestReconcileFails(t *testing.T) {
	t.Parallel()
	refusal := func(reason, message string) string {
		return "Warning " + reason + " signer kubernetes.io/kube-apiserver-client-kubelet refuses this request permanently: " + message + "; a new request is needed"
	}
	const badUsages = "usages did not match [client auth digital signature key encipherment]"
	const noPEM = "spec.request is not a PEM block of type CERTIFICATE REQUEST"
	const weak = "RSA key of 1024 bits is too weak: at least 2048 bits are needed"
	for name, test := range map[string]struct {
		change          func(*request)
		reason, message string
	}{
		"unknown usage": {usages("magic"), "SignerValidationFailure", badUsages},
		"wrong usages":  {usages("server auth"), "SignerValidationFailure", badUsages},
		"malformed":     {func(obj *request) { obj.Spec.Request = []byte("nonsense") }, "Malformed", noPEM},
		"weak key":      {func(obj *request) { obj.Spec.Request = payload(t, nodeRequest(), weakKey()) }, "KeyTooWeak", weak},
	} {
		t.Run(name, func(t *testing.T) { // without a CA
			t.Parallel()
			p := newParts(t, object(t, test.change))
			want := p.served.DeepCopy()
			want.Status.Conditions = append(want.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: "Failed", Status: "True", Reason: test.reason, Message: test.message, // the API server adds the times
			})
			if result, err := p.reconcile(t); err != nil || result != (reconcile.Result{}) {
				t.Fatalf("%+v, error %v", result, err)
			}
			if diff := cmp.Diff([]*request{want}, p.written); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{refusal(test.reason, test.message)}, taken(p.recorder)); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if len(p.served.Status.Conditions) != 1 {
				t.Error("the cache's object was changed")
			}
		})
	}
}

func TestReconcileWaitsForACA(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.pair.Refuse(&keypair.Unavailable{Reason: "CAMissing", Message: "Secret ns/ca does not exist"})
	taken(p.recorder)
	for _, age := range []time.Duration{0, 5 * time.Second, 10 * time.Minute} {
		p.clock.SetTime(now.Add(age))
		result, err := p.reconcile(t)
		if err != nil || result.RequeueAfter != csr.Pause(age) {
			t.Errorf("at the age of %s: %+v, error %v, want %s", age, result, err, csr.Pause(age))
		}
	}
	if diff := cmp.Diff([]string{"Warning CAMissing Secret ns/ca does not exist"}, taken(p.recorder)); diff != "" || len(p.written) > 0 {
		t.Errorf("%d writes, Events (-want +got):\n%s", len(p.written), diff)
	}
	p.load(t, day)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
		t.Errorf("with a CA: %d writes, error %v", len(p.written), err)
	}
}

// TestPausesCountFromTheApproval checks that an old request is tried again soon after it is approved.
func TestPausesCountFromTheApproval(t *testing.T) {
	t.Parallel()
	const age = 20 * time.Hour
	made := func(obj *request) { obj.CreationTimestamp = metav1.NewTime(now.Add(-age)) }
	for _, test := range []struct {
		change func(*request)
		want   time.Duration
	}{
		{func(*request) {}, 0},
		{func(obj *request) { obj.Status.Conditions[0].LastUpdateTime = metav1.Time{} }, age},
	} {
		p := newParts(t, object(t, made, test.change))
		if result, err := p.reconcile(t); err != nil || result.RequeueAfter != csr.Pause(test.want) {
			t.Errorf("%+v, error %v, want a pause of the age %s", result, err, test.want)
		}
	}
}

func TestReconcileTellsALifetimeThatWasCut(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.load(t, day)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
		t.Fatalf("%d writes, error %v", len(p.written), err)
	}
	want := []string{"Warning LifetimeCut the certificate expires 8735h55m0s early, at 2026-03-02T12:00:00Z, because its CA expires then: replace the CA"}
	if diff := cmp.Diff(want, taken(p.recorder)); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// TestReconcileFaults has each fault of the cache and of a write, where the API server still shows the judged version, or what live says.
func TestReconcileFaults(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}, "csr-1", nil)
	forbidden, conflict, gone := apierrors.NewForbidden(requests, "csr-1", down), apierrors.NewConflict(requests, "csr-1", down), apierrors.NewNotFound(requests, "csr-1")
	bad := usages("magic")
	for name, test := range map[string]struct {
		change     func(*request)
		get, write error
		live       func(*request) error
		writes     int
		want       string // part of the error
		event      string // part of the only Event
		again      time.Duration
	}{
		"gone":                             {get: gone},
		"cannot be read":                   {get: down, want: "down"},
		"certificate, conflict, no change": {write: conflict, writes: 1, want: "Operation cannot be fulfilled"},
		"certificate, deleted meanwhile":   {write: gone, writes: 1, want: "not found"},
		"certificate, write fails":         {write: down, writes: 1, want: "update status: down"},
		"certificate, overload":            {write: apierrors.NewTooManyRequests("later", 1), writes: 1, want: "update status: later"},
		"certificate, forbidden":           {write: forbidden, writes: 1, event: "NotStored the API server refuses to store the certificate of this request: ", again: time.Second},
		"certificate, invalid":             {write: invalid, writes: 1, event: "NotStored the API server refuses to store the certificate of this request: ", again: time.Second},
		"failure, conflict, no change":     {change: bad, write: conflict, writes: 1, want: "Operation cannot be fulfilled"},
		"failure, changed meanwhile":       {change: bad, write: conflict, live: func(obj *request) error { obj.ResourceVersion = "changed"; return nil }, writes: 1},
		"failure, not found, still there":  {change: bad, write: gone, writes: 1, want: "not found"},
		"failure, deleted meanwhile":       {change: bad, write: gone, live: func(*request) error { return gone }, writes: 1},
		"failure, write fails":             {change: bad, write: down, writes: 1, want: "update status: down"},
		"failure, forbidden":               {change: bad, write: forbidden, writes: 1, event: "NotStored the API server refuses to store the Failed condition (SignerValidationFailure: usages did not", again: time.Second},
		"failure, invalid":                 {change: bad, write: invalid, writes: 1, event: "NotStored the API server refuses to store the Failed condition (SignerValidationFailure: usages did not", again: time.Second},
		"malformed, invalid":               {change: func(obj *request) { obj.Spec.Request = []byte("nonsense") }, write: invalid, writes: 1, event: "Malformed", again: time.Second},
		"malformed, forbidden":             {change: func(obj *request) { obj.Spec.Request = []byte("nonsense") }, write: forbidden, writes: 1, event: "NotStored the API server refuses to store the Failed condition (Malformed: ", again: time.Second},
		"failure that was stored":          {change: bad, writes: 1, event: "SignerValidationFailure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.change == nil {
				test.change = func(*request) {}
			}
			p := newParts(t, object(t, test.change))
			p.load(t, 1000*day)
			p.getFault, p.writeFault = test.get, test.write
			p.reconciler.Live = liveFunc(func(obj *request) error {
				*obj = *p.served.DeepCopy()
				if test.live == nil {
					return nil
				}
				return test.live(obj)
			})
			result, err := p.reconcile(t)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if result.RequeueAfter != test.again || len(p.written) != test.writes {
				t.Errorf("again after %s, want %s; %d writes, want %d", result.RequeueAfter, test.again, len(p.written), test.writes)
			}
			told := taken(p.recorder)
			if (len(told) == 0) != (test.event == "") || len(told) > 1 || len(told) == 1 && !strings.Contains(told[0], test.event) {
				t.Errorf("Events %q, want %q", told, test.event)
			}
		})
	}
}

// TestARefusedWriteIsTriedForEver checks that a request is never given up, however often an admission policy refuses the
// write, and that its certificate or Failed condition is stored once the policy permits it.
func TestARefusedWriteIsTriedForEver(t *testing.T) {
	t.Parallel()
	invalid := apierrors.NewInvalid(schema.GroupKind{}, "csr-1", nil)
	for name, obj := range map[string]*request{"a certificate": object(t), "a Failed condition": object(t, usages("magic"))} {
		p := newParts(t, obj)
		p.load(t, 1000*day)
		p.reconciler.Live = liveFunc(func(obj *request) error { *obj = *p.served.DeepCopy(); return nil })
		p.writeFault = invalid
		const tries = 100
		for try := range tries {
			age := time.Duration(try) * 30 * time.Second
			p.clock.SetTime(now.Add(age))
			if result, err := p.reconcile(t); err != nil || result.RequeueAfter != csr.Pause(age) {
				t.Fatalf("%s, at the age of %s: %+v, error %v", name, age, result, err)
			}
		}
		p.writeFault = nil
		if result, err := p.reconcile(t); err != nil || result != (reconcile.Result{}) || len(p.written) != tries+1 {
			t.Errorf("%s: %+v, error %v, %d writes", name, result, err, len(p.written))
		}
	}
}

// TestAFailedConditionThatWasNotStoredIsWrittenAgain loses the write of a Failed condition, with and without an answer.
// The outcome is reported once it is stored, and never before.
func TestAFailedConditionThatWasNotStoredIsWrittenAgain(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, test := range map[string]struct {
		live   func(p *parts, obj *request) error
		writes int
	}{
		"not stored":                      {func(p *parts, obj *request) error { *obj = *p.served.DeepCopy(); return nil }, 2},
		"unknown":                         {func(*parts, *request) error { return down }, 2},
		"stored, though the write failed": {func(p *parts, obj *request) error { *obj = *p.written[0]; return nil }, 1},
		"stored by the request made anew": {func(p *parts, obj *request) error { *obj = *p.written[0]; obj.UID = "another"; return nil }, 2},
		"another Failed condition of a person": {func(p *parts, obj *request) error {
			*obj = *p.served.DeepCopy()
			with("Failed", "True")(obj)
			return nil
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t, usages("magic")))
			p.writeFault = down
			p.reconciler.Live = liveFunc(func(obj *request) error { return test.live(p, obj) })
			if _, err := p.reconcile(t); (err == nil) != (test.writes == 1) {
				t.Errorf("error %v", err)
			}
			if told := taken(p.recorder); len(told) != 2-test.writes {
				t.Errorf("Events %q before it was stored", told)
			}
			if test.writes == 1 {
				return
			}
			p.writeFault = nil
			if _, err := p.reconcile(t); err != nil || len(p.written) != test.writes || csr.StateOf(p.written[1]) != csr.Failed {
				t.Errorf("%d writes, error %v", len(p.written), err)
			}
			if told := taken(p.recorder); len(told) != 1 {
				t.Errorf("Events %q", told)
			}
		})
	}
}

// TestWritesOutliveTheManager checks that a recorded certificate is stored even if the manager stops meanwhile, and that
// the write and the read after it may take longer than an admission webhook.
func TestWritesOutliveTheManager(t *testing.T) {
	t.Parallel()
	const slow = 30 * time.Second // the longest timeout of an admission webhook
	for name, obj := range map[string]*request{"a certificate": object(t), "a Failed condition": object(t, usages("magic"))} {
		p := newParts(t, obj)
		p.load(t, 1000*day)
		calls := 0
		check := func(ctx context.Context) error {
			calls++
			if deadline, ok := ctx.Deadline(); ctx.Err() != nil || !ok || time.Until(deadline) < slow {
				t.Errorf("%s: call %d ends at %s, %v", name, calls, deadline, ctx.Err())
			}
			return errors.New("no answer")
		}
		p.reconciler.Client = interceptor.NewClient(p.reconciler.Client.(client.WithWatch), interceptor.Funcs{
			SubResourceUpdate: func(ctx context.Context, _ client.Client, _ string, _ client.Object, _ ...client.SubResourceUpdateOption) error {
				return check(ctx)
			},
		})
		p.reconciler.Live = fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
				return check(ctx)
			},
		}).Build()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.reconciler.Reconcile(ctx, keyOf(obj)); err == nil || calls != 2 {
			t.Errorf("%s: %d calls, error %v", name, calls, err)
		}
	}
}

// TestReconcileWithASkewedClock checks that a clock that is wrong by an hour does not make a fresh approval too old.
// Nothing is signed until the clock is right.
func TestReconcileWithASkewedClock(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ahead time.Duration
		event string // empty means signed
	}{
		"no skew":                      {},
		"five minutes ahead":           {ahead: servertime.MaxSkew},
		"five minutes behind":          {ahead: -servertime.MaxSkew},
		"more than five minutes ahead": {ahead: servertime.MaxSkew + 1, event: "ClockSkewed the manager's clock is 5m0s ahead of"},
		"an hour ahead":                {ahead: 61 * time.Minute, event: "ClockSkewed the manager's clock is 1h1m0s ahead of"},
		"an hour behind":               {ahead: -61 * time.Minute, event: "ClockSkewed the manager's clock is 1h1m0s behind"},
		"set forward by 25 hours":      {ahead: 25 * time.Hour, event: "ClockSkewed the manager's clock is 25h0m0s ahead of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t))
			p.load(t, 1000*day)
			p.clock.SetTime(now.Add(test.ahead))
			p.reconciler.ServerTime = servertime.Apart(p.clock, clocktesting.NewFakePassiveClock(now))
			result, err := p.reconcile(t)
			if err != nil {
				t.Fatal(err)
			}
			if signed := len(p.written) == 1 && len(p.written[0].Status.Certificate) > 0; signed != (test.event == "") || len(p.written) > 1 {
				t.Errorf("signed: %t, %d writes", signed, len(p.written))
			}
			events := strings.Join(taken(p.recorder), "\n")
			if !strings.Contains(events, test.event) || (test.event == "") != (events == "") {
				t.Errorf("events %q, want %q", events, test.event)
			}
			if waits := test.event != ""; waits != (result.RequeueAfter > 0) || result.RequeueAfter > time.Minute {
				t.Errorf("again after %s", result.RequeueAfter)
			}
		})
	}
}

// TestReconcileWaitsForServerTime checks that nothing is signed or marked as Failed before the API servers' time is known.
func TestReconcileWaitsForServerTime(t *testing.T) {
	t.Parallel()
	for _, obj := range []*request{object(t), object(t, usages("magic"))} {
		p := newParts(t, obj)
		p.load(t, 1000*day)
		p.clock.SetTime(now.Add(2 * time.Hour))
		p.reconciler.ServerTime = &servertime.Clock{}
		for range 2 {
			if result, err := p.reconcile(t); err != nil || result.RequeueAfter != time.Second || len(p.written) > 0 {
				t.Errorf("again after %s, error %v, %d writes", result.RequeueAfter, err, len(p.written))
			}
		}
		if told := taken(p.recorder); len(told) != 1 || !strings.HasPrefix(told[0], "Warning ClockSkewed the time of the API servers is unknown") {
			t.Errorf("Events %q", told)
		}
	}
}

// TestReconcileMeasuresBeforeARequestIsTooOld sets the API server's clock back by a day. A request that is approved then
// seems to be a day old. It waits, because the clocks differ.
func TestReconcileMeasuresBeforeARequestIsTooOld(t *testing.T) {
	t.Parallel()
	server, set := servertimetest.Measured(t)
	set(-day)
	made := metav1.NewTime(time.Now().Add(-day))
	p := newParts(t, object(t, func(obj *request) {
		obj.CreationTimestamp, obj.Status.Conditions[0].LastUpdateTime = made, made
	}))
	p.load(t, 1000*day)
	p.clock.SetTime(time.Now())
	p.reconciler.ServerTime = server
	result, err := p.reconcile(t)
	if err != nil || result.RequeueAfter == 0 || len(p.written) > 0 {
		t.Errorf("%+v, error %v, %d writes", result, err, len(p.written))
	}
	if told := taken(p.recorder); len(told) != 1 || !strings.HasPrefix(told[0], "Warning ClockSkewed the manager's clock is 24h0m") {
		t.Errorf("Events %q", told)
	}
}

// TestErrorsAreCounted checks that an attempt with an error is counted once, and so is a refusal of the API server.
func TestErrorsAreCounted(t *testing.T) { // not parallel, because the counter is the process's
	p := newParts(t, object(t))
	p.load(t, day)
	count := func(reason string, get, write error) float64 {
		t.Helper()
		counter := errorsTotal.WithLabelValues(reason)
		before := countOf(t, counter)
		p.getFault, p.writeFault = get, write
		_, _ = p.reconcile(t)
		return countOf(t, counter) - before
	}
	down := errors.New("down")
	if got := count("Other", nil, nil); got != 0 {
		t.Errorf("%v errors of a good attempt", got)
	}
	if got := count("Other", down, nil); got != 1 {
		t.Errorf("%v errors of a failed read", got)
	}
	if got := count("Forbidden", nil, apierrors.NewForbidden(requests, "csr-1", down)); got != 1 {
		t.Errorf("%v errors of a refused write", got)
	}
}

// TestWritesNameTheFieldManager checks that each write names the field manager. The client's user agent could be
// anything.
func TestWritesNameTheFieldManager(t *testing.T) {
	t.Parallel()
	for name, obj := range map[string]*request{"a certificate": object(t), "a Failed condition": object(t, usages("fly"))} {
		p := newParts(t, obj)
		p.load(t, 365*day)
		var options client.SubResourceUpdateOptions
		p.reconciler.Client = interceptor.NewClient(p.reconciler.Client.(client.WithWatch), interceptor.Funcs{
			SubResourceUpdate: func(_ context.Context, _ client.Client, _ string, _ client.Object, given ...client.SubResourceUpdateOption) error {
				options.ApplyOptions(given)
				return nil
			},
		})
		if _, err := p.reconcile(t); err != nil || options.FieldManager != "csr-controller-manager" {
			t.Errorf("%s: field manager %q, error %v", name, options.FieldManager, err)
		}
	}
}
