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
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/servertimetest"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

var requests = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}

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
			root := newRoot(t, 1000*24*time.Hour)
			p.pair.Load(root.cert, root.key)
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
			if diff := cmp.Diff([]any{"CN=system:node:a,O=system:nodes", x509.KeyUsageDigitalSignature, 365 * 24 * time.Hour, true}, got); diff != "" {
				t.Errorf("certificate (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReconcileLeavesAlone(t *testing.T) {
	t.Parallel()
	stale := []string{"Warning RequestTooOld the request is approved, but due for deletion since 2026-03-01T13:00:00Z and no longer signed; a new request is needed"}
	for name, test := range map[string]struct {
		change func(*request)
		later  time.Duration
		told   []string
	}{
		"pending":             {change: func(obj *request) { obj.Status.Conditions = nil }},
		"denied":              {change: with("Denied", "True")},
		"denied only":         {change: func(obj *request) { obj.Status.Conditions[0].Type = "Denied" }},
		"denied, no status":   {change: with("Denied", "")},
		"failed":              {change: with("Failed", "True")},
		"failed, no status":   {change: with("Failed", "")},
		"issued":              {change: func(obj *request) { obj.Status.Certificate = []byte("whatever") }},
		"another signer":      {change: signerName("example.com/foreign")},
		"another, malformed":  {change: func(obj *request) { obj.Spec.SignerName, obj.Spec.Request = "example.com/foreign", nil }},
		"a stale approval":    {change: func(*request) {}, later: time.Hour + 1, told: stale},
		"stale and malformed": {change: func(obj *request) { obj.Spec.Request = nil }, later: time.Hour + 1, told: stale},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t, test.change))
			root := newRoot(t, 1000*24*time.Hour)
			p.pair.Load(root.cert, root.key)
			taken(p.recorder)
			p.clock.SetTime(now.Add(test.later))
			result, err := p.reconcile(t)
			if err != nil || result != (reconcile.Result{}) || len(p.written) > 0 {
				t.Errorf("%+v, error %v, %d writes", result, err, len(p.written))
			}
			if diff := cmp.Diff(test.told, taken(p.recorder)); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReconcileMeasuresBeforeARequestIsTooOld sets the API server's clock back by a day. A request that is approved then seems to be a day
// old. It waits, because the clocks differ.
func TestReconcileMeasuresBeforeARequestIsTooOld(t *testing.T) {
	t.Parallel()
	server, set := servertimetest.Measured(t)
	const day = 24 * time.Hour
	set(-day)
	made := metav1.NewTime(time.Now().Add(-day))
	p := newParts(t, object(t, func(obj *request) {
		obj.CreationTimestamp, obj.Status.Conditions[0].LastUpdateTime = made, made
		obj.ResourceVersion = servertimetest.NewVersion()
	}))
	root := newRoot(t, 1000*day)
	p.pair.Load(root.cert, root.key)
	taken(p.recorder)
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

func TestReconcileSignsUntilTheApprovalIsDue(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	root := newRoot(t, 24*time.Hour)
	p.pair.Load(root.cert, root.key)
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
		t.Run(name, func(t *testing.T) { // with a CA and without
			t.Parallel()
			p := newParts(t, object(t, test.change))
			want := p.served.DeepCopy()
			want.Status.Conditions = append(want.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: "Failed", Status: "True", Reason: test.reason, Message: test.message, LastUpdateTime: metav1.NewTime(now),
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
	for age, want := range map[time.Duration]time.Duration{0: time.Second, 5 * time.Second: 5 * time.Second, 10 * time.Minute: time.Minute} {
		p.clock.SetTime(now.Add(age))
		result, err := p.reconcile(t)
		if err != nil || result.RequeueAfter != want || result.Priority == nil || *result.Priority >= 0 {
			t.Errorf("at the age of %s: %+v, error %v, want %s", age, result, err, want)
		}
	}
	if diff := cmp.Diff([]string{"Warning CAMissing Secret ns/ca does not exist"}, taken(p.recorder)); diff != "" || len(p.written) > 0 {
		t.Errorf("%d writes, Events (-want +got):\n%s", len(p.written), diff)
	}
	root := newRoot(t, 24*time.Hour)
	p.pair.Load(root.cert, root.key)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
		t.Errorf("with a CA: %d writes, error %v", len(p.written), err)
	}
}

func TestReconcileTellsALifetimeThatWasCut(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	root := newRoot(t, 24*time.Hour)
	p.pair.Load(root.cert, root.key)
	taken(p.recorder)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
		t.Fatalf("%d writes, error %v", len(p.written), err)
	}
	want := []string{"Warning LifetimeCut the certificate expires 8735h55m0s early, at 2026-03-02T12:00:00Z, because its CA expires then: replace the CA"}
	if diff := cmp.Diff(want, taken(p.recorder)); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

func TestReconcileFaults(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}, "csr-1", nil)
	bad := usages("magic")
	for name, test := range map[string]struct {
		change     func(*request)
		get, write error
		writes     int
		want       string
		events     int
	}{
		"gone":                             {get: apierrors.NewNotFound(requests, "csr-1")},
		"cannot be read":                   {get: down, want: "down"},
		"certificate, conflict, no change": {write: apierrors.NewConflict(requests, "csr-1", down), writes: 1, want: "Operation cannot be fulfilled"},
		"certificate, deleted meanwhile":   {write: apierrors.NewNotFound(requests, "csr-1"), writes: 1, want: "not found"},
		"certificate, write fails":         {write: down, writes: 1, want: "update status: down"},
		"certificate, forbidden":           {write: apierrors.NewForbidden(requests, "csr-1", down), writes: 1, want: "forbidden"},
		"certificate, invalid for good":    {write: invalid, writes: 1, events: 1},
		"failure, conflict, no change":     {change: bad, write: apierrors.NewConflict(requests, "csr-1", down), writes: 1, want: "Operation cannot be fulfilled"},
		"failure, deleted meanwhile":       {change: bad, write: apierrors.NewNotFound(requests, "csr-1"), writes: 1, want: "not found"},
		"failure, write fails":             {change: bad, write: down, writes: 1, want: "update status: down"},
		"failure that cannot be marked":    {change: bad, write: invalid, writes: 1, events: 1},
		"failure that was stored":          {change: bad, writes: 1, events: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.change == nil {
				test.change = func(*request) {}
			}
			p := newParts(t, object(t, test.change))
			root := newRoot(t, 24*time.Hour)
			p.pair.Load(root.cert, root.key)
			taken(p.recorder)
			p.getFault, p.writeFault = test.get, test.write
			_, err := p.reconcile(t)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if told := taken(p.recorder); len(p.written) != test.writes || len(told) != test.events {
				t.Errorf("%d writes, want %d; Events %q, want %d", len(p.written), test.writes, told, test.events)
			}
		})
	}
}

// TestReconcileStoresWhenToldToStop checks that a recorded certificate is stored even if the manager stops between.
// Otherwise its outcome would be unknown.
func TestReconcileStoresWhenToldToStop(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	root := newRoot(t, 24*time.Hour)
	p.pair.Load(root.cert, root.key)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.reconciler.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: p.served.Name}})
	if err != nil || len(p.written) != 1 || len(p.written[0].Status.Certificate) == 0 {
		t.Errorf("%d writes, want the certificate's: %v", len(p.written), err)
	}
}

// TestReconcileWithASkewedClock checks that a clock that is wrong by an hour does not make a fresh approval too old.
// Nothing is signed until the clock is right.
func TestReconcileWithASkewedClock(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ahead  time.Duration
		change []func(*request)
		signed bool
		event  string
	}{
		"no skew":                      {signed: true},
		"five minutes ahead":           {ahead: servertime.MaxSkew, signed: true},
		"five minutes behind":          {ahead: -servertime.MaxSkew, signed: true},
		"more than five minutes ahead": {ahead: servertime.MaxSkew + 1, event: "ClockSkewed the manager's clock is 5m0s ahead of"},
		"an hour ahead":                {ahead: 61 * time.Minute, event: "ClockSkewed the manager's clock is 1h1m0s ahead of"},
		"an hour behind":               {ahead: -61 * time.Minute, event: "ClockSkewed the manager's clock is 1h1m0s behind"},
		"an invalid request, an hour ahead": {
			ahead: 61 * time.Minute, change: []func(*request){usages("client auth", "server auth")}, event: "SignerValidationFailure",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t, test.change...))
			ca := newRoot(t, 1000*24*time.Hour)
			p.pair.Load(ca.cert, ca.key)
			taken(p.recorder)
			p.clock.SetTime(now.Add(test.ahead))
			p.reconciler.ServerTime = servertime.Apart(p.clock, clocktesting.NewFakePassiveClock(now))
			result, err := p.reconcile(t)
			if err != nil {
				t.Fatal(err)
			}
			if signed := len(p.written) == 1 && len(p.written[0].Status.Certificate) > 0; signed != test.signed {
				t.Errorf("signed: %t", signed)
			}
			events := strings.Join(taken(p.recorder), "\n")
			if !strings.Contains(events, test.event) || (test.event == "") != (events == "") {
				t.Errorf("events %q, want %q", events, test.event)
			}
			if waits := strings.HasPrefix(test.event, "ClockSkewed"); waits != (result.RequeueAfter > 0) || result.RequeueAfter > time.Minute {
				t.Errorf("again after %s", result.RequeueAfter)
			}
			if failed := len(p.written) == 1 && !test.signed; failed {
				for _, condition := range p.written[0].Status.Conditions {
					if condition.Type == "Failed" && !condition.LastUpdateTime.Time.Equal(now) {
						t.Errorf("it failed at %s, which the API servers compare with %s", condition.LastUpdateTime, now)
					}
				}
			}
		})
	}
}

// TestReconcileWaitsForServerTime checks that nothing is judged before the API servers' time is known, because a fresh
// approval could look too old.
func TestReconcileWaitsForServerTime(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.clock.SetTime(now.Add(2 * time.Hour))
	p.reconciler.ServerTime = &servertime.Clock{}
	result, err := p.reconcile(t)
	if told := taken(p.recorder); err != nil || result.RequeueAfter != time.Second || len(told) > 0 || len(p.written) > 0 {
		t.Errorf("again after %s, error %v, events %q", result.RequeueAfter, err, told)
	}
}
