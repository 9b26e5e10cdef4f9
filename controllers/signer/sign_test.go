package signer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// audited returns parts that sign and write an audit log, and a function that returns its events.
func audited(t *testing.T, obj *request) (p *parts, events func() string) {
	t.Helper()
	p = newParts(t, obj)
	p.load(t, 365*day)
	file := filepath.Join(t.TempDir(), "audit.log")
	opened, err := audit.Open(audit.Options{Path: file, MaxSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	p.reconciler.Audit = opened
	return p, func() string {
		t.Helper()
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for line := range bytes.Lines(data) {
			var record audit.Record
			if err := json.Unmarshal(line, &record); err != nil {
				t.Fatal(err)
			}
			all = append(all, strings.TrimSpace(string(record.Event)+" "+record.Reason))
		}
		return strings.Join(all, ", ")
	}
}

func TestWhatDoesNotFitIntoAnObjectIsFailed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bytes int
		write error // of the first write
		want  string
	}{
		"the certificate fits":            {1 << 20, nil, "Signed"},
		"the API server refuses the size": {10, apierrors.NewRequestEntityTooLargeError("limit is 3145728"), "Signed, Discarded, NotSigned RequestTooLarge"},
		"etcd refuses the size":           {10, apierrors.NewInternalError(errors.New("etcdserver: request is too large")), "Signed, Discarded, NotSigned RequestTooLarge"},
		"etcd's client refuses the size":  {10, apierrors.NewInternalError(errors.New("rpc error: code = ResourceExhausted desc = trying to send message larger than max (2099474 vs. 2097152)")), "Signed, Discarded, NotSigned RequestTooLarge"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, events := audited(t, object(t, func(obj *request) { obj.Labels = map[string]string{"a": strings.Repeat("b", test.bytes)} }))
			p.writeFault = test.write
			p.reconciler.Live = liveFunc(func(obj *request) error {
				p.writeFault = nil // the Failed condition is small enough
				*obj = *p.served.DeepCopy()
				return nil
			})
			if result, err := p.reconcile(t); err != nil || result.RequeueAfter > 0 {
				t.Errorf("%+v, error %v", result, err)
			}
			if got := events(); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			last := p.written[len(p.written)-1]
			if failed := len(last.Status.Conditions) == 2 && last.Status.Conditions[1].Reason == "RequestTooLarge" && len(last.Status.Certificate) == 0; failed != strings.Contains(test.want, "TooLarge") {
				t.Errorf("%d conditions", len(last.Status.Conditions))
			}
		})
	}
}

// TestNeitherFitsIntoAnObject checks a request that is too large even for a Failed condition. It is reported, and the
// cleaner deletes it.
func TestNeitherFitsIntoAnObject(t *testing.T) {
	t.Parallel()
	p, events := audited(t, object(t))
	p.writeFault = apierrors.NewRequestEntityTooLargeError("limit is 3145728")
	if result, err := p.reconcile(t); err != nil || result.RequeueAfter == 0 || len(p.written) != 2 {
		t.Errorf("%+v, error %v, %d writes", result, err, len(p.written))
	}
	if got := events(); got != "Signed, Discarded, NotSigned NotStored" {
		t.Error(got)
	}
}

// liveFunc answers the API server's read of a request.
type liveFunc func(*request) error

func (f liveFunc) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	return f(obj.(*request))
}

func (liveFunc) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("list")
}

// certificateSHA256 returns the digest of the certificate in obj.
func certificateSHA256(obj *request) string {
	block, _ := pem.Decode(obj.Status.Certificate)
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}

// TestAMismatchIsNeverStored removes a signer's rules for requests, like a defect in them. The finished certificate
// must be discarded, counted, recorded and reported at each attempt, and nothing may be written.
func TestAMismatchIsNeverStored(t *testing.T) {
	const name = "example.com/custom"
	p := newParts(t, object(t, signerName(name), usages("client auth"), template(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes.default.svc"} })))
	p.load(t, 365*day)
	signer := p.reconciler.Signers[name]
	within := contentsOf("kubernetes.io/kube-apiserver-client-kubelet", nil)
	signer.Profile = signer.Profile.Containing(within)
	p.reconciler.Signers[name] = signer
	file := filepath.Join(t.TempDir(), "audit.log")
	opened, err := audit.Open(audit.Options{Path: file, MaxSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	p.reconciler.Audit = opened
	const mismatches, discards = "csr_signer_certificate_mismatches_total", "csr_signer_discarded_total"
	before, discardedBefore := counted(t, mismatches, name), counted(t, discards, name)
	taken(p.recorder)
	for range 2 {
		if result, err := p.reconcile(t); err != nil || result.RequeueAfter != csr.Pause(0) {
			t.Errorf("%+v, error %v", result, err)
		}
	}
	if len(p.written) > 0 {
		t.Error("it was written")
	}
	if got, gotDiscarded := counted(t, mismatches, name)-before, counted(t, discards, name)-discardedBefore; got != 2 || gotDiscarded != 2 {
		t.Errorf("counted as a mismatch %v times, as discarded %v times", got, gotDiscarded)
	}
	records := recordsIn(t, file, audit.Discarded, audit.NotSigned)
	discarded, told := records[0], records[1]
	if len(records) != 3 || discarded.Event != audit.Discarded || discarded.Serial == "" || discarded.IssuerKeyID == "" || told.Event != audit.NotSigned || told.Reason != "CertificateMismatch" {
		t.Errorf("%+v, then %+v", discarded, told)
	}
	if events := taken(p.recorder); len(events) != 1 || !strings.Contains(events[0], "CertificateMismatch the issued certificate differs from the judged request: a DNS name is not permitted") {
		t.Errorf("told %q", events)
	}
}

// counted returns the value of a counter for a signer.
func counted(t *testing.T, counter, signerName string) (value float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == counter && metric.GetLabel()[0].GetValue() == signerName {
				value = metric.GetCounter().GetValue()
			}
		}
	}
	return value
}

// TestEachSignerHasContents checks that certificates may contain exactly what each signer may be asked for.
func TestEachSignerHasContents(t *testing.T) {
	t.Parallel()
	r := newParts(t, object(t)).reconciler
	if err := r.fillProfiles(); err != nil {
		t.Fatal(err)
	}
	signing, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*x509.CertificateRequest)
		usages []certificatesv1.KeyUsage
		want   string // part of the error
	}{
		"kubernetes.io/kube-apiserver-client": {func(r *x509.CertificateRequest) {
			r.Subject.CommonName = "admin"
			r.EmailAddresses = []string{"a@b.ch"}
		}, []certificatesv1.KeyUsage{"client auth", "key encipherment"}, ""},
		"kubernetes.io/kube-apiserver-client-kubelet": {func(*x509.CertificateRequest) {}, []certificatesv1.KeyUsage{"client auth", "server auth"}, "extended key usage 1"},
		"kubernetes.io/kubelet-serving":               {func(r *x509.CertificateRequest) { r.DNSNames = []string{"a"} }, []certificatesv1.KeyUsage{"server auth", "cert sign"}, "key usage 100000"},
		"example.com/custom":                          {func(r *x509.CertificateRequest) { r.Subject.CommonName = "x" }, []certificatesv1.KeyUsage{"any"}, "extended key usage 0"},
	} {
		obj := object(t, signerName(name), template(t, test.change))
		obj.Spec.Usages = test.usages
		req, err := csr.Parse(obj)
		if err != nil {
			t.Fatal(err)
		}
		_, err = signing.Issue(r.Signers[name].Profile, req.Cert, now)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

// TestIssuedLifetimeIsWhatOthersGetToo checks the gauge that alerts use. A CA that ends soon shortens it; a
// requester's own lifetime does not. The test is not parallel, because all tests share the gauge.
func TestIssuedLifetimeIsWhatOthersGetToo(t *testing.T) {
	lifetime := func(ca time.Duration, change ...func(*request)) time.Duration {
		t.Helper()
		p := newParts(t, object(t, change...))
		p.load(t, ca)
		if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
			t.Fatalf("%d writes, error %v", len(p.written), err)
		}
		metric := &dto.Metric{}
		if err := issuedLifetimeSeconds.WithLabelValues(p.written[0].Spec.SignerName).Write(metric); err != nil {
			t.Fatal(err)
		}
		return time.Duration(metric.GetGauge().GetValue()) * time.Second
	}
	const year = 365 * 24 * time.Hour
	if got := lifetime(10 * year); got != year {
		t.Errorf("%s, want the configured year", got)
	}
	tenMinutes := int32(600)
	if got := lifetime(10*year, func(obj *request) { obj.Spec.ExpirationSeconds = &tenMinutes }); got != year {
		t.Errorf("%s after a requester asked for ten minutes: nobody else gets that", got)
	}
	if got := lifetime(24 * time.Hour); got > 25*time.Hour {
		t.Errorf("%s, but the CA ends in a day", got)
	}
}

const kubeletClient, kubeletServing = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"

// ledgerFunc implements Ledger.
type ledgerFunc func(keyID, signerName string, notAfter time.Time) error

func (f ledgerFunc) Cover(_ context.Context, keyID, signerName string, notAfter time.Time) error {
	return f(keyID, signerName, notAfter)
}

// guardedParts returns parts with a CA that ends after lifetime. The permit is changed by change, and cover is the
// ledger.
func guardedParts(t *testing.T, lifetime time.Duration, cover ledgerFunc, change ...func(*keypair.Ring)) *parts {
	t.Helper()
	p := newParts(t, object(t))
	secret := keypair.Secret{Namespace: "ns", Name: "ca"}
	guarded := keypair.New(keypair.Guarded{Secret: secret, Ledger: cover})
	guarded.Clock, guarded.Reporter, p.pair = p.pair.Clock, p.pair.Reporter, guarded
	for name, signer := range p.reconciler.Signers {
		signer.KeyPair = guarded
		p.reconciler.Signers[name] = signer
	}
	signing := newRoot(t, lifetime)
	ring := keypair.Ring{
		Signing: keypair.Pair{Cert: signing.cert, Key: signing.key},
		Permit:  keypair.Permit{Authority: "cluster", Signers: []string{kubeletClient}},
	}
	for _, each := range change {
		each(&ring)
	}
	stored := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{}}
	stored.Namespace, stored.Name = secret.Namespace, secret.Name
	if err := ring.WriteTo(stored.Data); err != nil {
		t.Fatal(err)
	}
	guarded.Offer(stored)
	taken(p.recorder)
	return p
}

// TestCoveredBeforeItIsSigned checks that the ledger records the same end as the certificate, and records it first.
func TestCoveredBeforeItIsSigned(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lifetime time.Duration // of the CA
		longest  time.Duration
		want     time.Duration // of the certificate
		events   int
	}{
		"the profile's lifetime":   {10 * 365 * 24 * time.Hour, 0, 365*24*time.Hour - 5*time.Minute, 0},
		"the permit's cap":         {10 * 365 * 24 * time.Hour, 24 * time.Hour, 24*time.Hour - 5*time.Minute, 0},
		"a cap above the profile":  {10 * 365 * 24 * time.Hour, 9999 * time.Hour, 365*24*time.Hour - 5*time.Minute, 0},
		"cut by the end of the CA": {time.Hour, 24 * time.Hour, time.Hour, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p *parts
			var told []string
			p = guardedParts(t, test.lifetime, func(keyID, signerName string, notAfter time.Time) error {
				if len(p.written) > 0 {
					t.Error("written before it was covered")
				}
				told = append(told, keyID, signerName, notAfter.Sub(now).String())
				return nil
			}, func(r *keypair.Ring) { r.Permit.LifetimeCap = test.longest })
			if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
				t.Fatalf("written %d times, error %v", len(p.written), err)
			}
			if diff := cmp.Diff([]string{state(p.pair, now), kubeletClient, test.want.String()}, told); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			certs, err := ca.ParseCertificates(p.written[0].Status.Certificate)
			if err != nil || !certs[0].NotAfter.Equal(now.Add(test.want)) {
				t.Errorf("issued until %v, error %v", certs, err)
			}
			if got := taken(p.recorder); len(got) != test.events {
				t.Errorf("Events %q", got)
			}
		})
	}
}

// TestNothingIsSignedThatIsNotCovered checks that a failed ledger write is retried and reported once.
func TestNothingIsSignedThatIsNotCovered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault error
		todo  string
	}{
		"unavailable": {errors.New("no route"), ""},
		"sealed":      {fmt.Errorf("issue by key a: %w", ledger.ErrSealed), ""},
		"lost": {fmt.Errorf("read the account of key a: %w", ledger.ErrNoAccount),
			"; the ledger was deleted or does not exist yet: check that the rotation controller runs, " +
				"which creates it and counts earlier certificates as outstanding (kubectl get signingauthorities -o wide)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := guardedParts(t, 24*time.Hour, func(string, string, time.Time) error { return test.fault })
			for range 2 {
				if _, err := p.reconcile(t); !errors.Is(err, test.fault) || len(p.written) > 0 {
					t.Errorf("written %d times, error %v", len(p.written), err)
				}
			}
			want := []string{"Warning LedgerUnavailable the certificate is not signed, because the CA's ledger cannot record it: " + test.fault.Error() + test.todo}
			if diff := cmp.Diff(want, taken(p.recorder)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNotProven checks that a request waits if the permit does not name its signer. The ledger is not asked.
func TestNotProven(t *testing.T) {
	t.Parallel()
	p := guardedParts(t, 24*time.Hour, func(string, string, time.Time) error { t.Error("asked"); return nil },
		func(r *keypair.Ring) { r.Permit.Signers = []string{kubeletServing} })
	result, err := p.reconcile(t)
	if err != nil || result.RequeueAfter == 0 || len(p.written) > 0 {
		t.Errorf("result %v, error %v, written %d times", result, err, len(p.written))
	}
	if got := taken(p.recorder); len(got) != 1 || !strings.HasPrefix(got[0], "Warning CANotProven the CA in Secret ns/ca is not proven") {
		t.Errorf("Events %q", got)
	}
}

// TestWithoutRotationNothingIsNoted checks that without rotation only the certificate is written. The fake client
// fails the test for any other write.
func TestWithoutRotationNothingIsNoted(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.load(t, day)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 || p.written[0].Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		t.Errorf("written %d times, error %v", len(p.written), err)
	}
}
