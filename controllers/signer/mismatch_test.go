package signer

import (
	"crypto/x509"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestAMismatchIsNeverStored takes the rules for requests of a signer away, as a fault in them would: the finished
// certificate is discarded, counted, recorded and told, and nothing is written.
func TestAMismatchIsNeverStored(t *testing.T) {
	const name = "example.com/custom"
	p := newParts(t, object(t, signerName(name), usages("client auth"), template(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes.default.svc"} })))
	root := newRoot(t, 365*24*time.Hour)
	p.pair.Load(root.cert, root.key)
	p.note(probe.Refused)
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
	if _, err := p.reconcile(t); err == nil || !strings.Contains(err.Error(), "a DNS name is not permitted in this profile") || !strings.Contains(err.Error(), "terminal error") {
		t.Errorf("error %v", err)
	}
	if _, err := p.reconcile(t); err != nil {
		t.Errorf("looked at again: %v", err)
	}
	if len(p.written) > 0 {
		t.Error("it was written")
	}
	if got, gotDiscarded := counted(t, mismatches, name)-before, counted(t, discards, name)-discardedBefore; got != 1 || gotDiscarded != 1 {
		t.Errorf("counted as a mismatch %v times, as discarded %v times", got, gotDiscarded)
	}
	discarded, told := twoRecords(t, file)
	if discarded.Event != audit.Discarded || discarded.Serial == "" || discarded.IssuerKeyID == "" || told.Event != audit.NotSigned || told.Reason != "CertificateMismatch" {
		t.Errorf("%+v, then %+v", discarded, told)
	}
	if events := taken(p.recorder); len(events) != 1 || !strings.Contains(events[0], "CertificateMismatch") {
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

// TestEachSignerHasContents: what a signer may be asked for is what its certificates may contain.
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
		want   string // of what issuing ends with
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
