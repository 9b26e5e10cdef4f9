package csr_test

import (
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// certificateUntil returns a certificate in PEM that expires at end.
func certificateUntil(t testing.TB, end time.Time) []byte {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-time.Hour), NotAfter: end}
	return block("CERTIFICATE", must(x509.CreateCertificate(rand.Reader, template, template, leafKey().Public(), leafKey())))
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	const ever = time.Duration(-1)
	defaults := csr.Retention{Approved: time.Hour, Denied: time.Hour, Failed: time.Hour, Pending: 24 * time.Hour}
	own := func(change func(*csr.Retention)) csr.Retention {
		changed := defaults
		change(&changed)
		return changed
	}
	type request = certificatesv1.CertificateSigningRequest
	with := func(kind string, updated time.Time) func(*request) {
		return func(obj *request) {
			obj.Status.Conditions = append(obj.Status.Conditions, condition(kind, "True", updated))
		}
	}
	issued := func(until time.Time) func(*request) {
		return func(obj *request) { obj.Status.Certificate = certificateUntil(t, until) }
	}
	bytes := func(data string) func(*request) { return func(obj *request) { obj.Status.Certificate = []byte(data) } }
	never := time.Time{}
	day, hour := now.Add(24*time.Hour), now.Add(time.Hour)
	later := now.Add(10 * time.Minute) // conditions are added after creation

	for name, test := range map[string]struct {
		change []func(*request)
		policy *csr.RetentionPolicy // nil means the defaults
		want   time.Time            // zero means never
	}{
		"pending, from creation":        {want: day},
		"without creation time":         {change: []func(*request){func(obj *request) { obj.CreationTimestamp = metav1.Time{} }}, want: never},
		"foreign condition, as pending": {change: []func(*request){with("Vetted", later)}, want: day},
		"issued without an approval":    {change: []func(*request){issued(now)}, want: day},
		"approved, from the approval":   {change: []func(*request){with("Approved", now)}, want: hour},
		"approved later":                {change: []func(*request){with("Approved", later)}, want: later.Add(time.Hour)},
		"denied":                        {change: []func(*request){with("Denied", later)}, want: later.Add(time.Hour)},
		"failed, never approved":        {change: []func(*request){with("Failed", later)}, want: later.Add(time.Hour)},
		"failed, whatever its status": {change: []func(*request){func(obj *request) {
			obj.Status.Conditions = append(obj.Status.Conditions, condition("Failed", "False", later))
		}}, want: later.Add(time.Hour)},
		"approved without a time":             {change: []func(*request){with("Approved", never)}, want: never},
		"denied without a time":               {change: []func(*request){with("Denied", never)}, want: never},
		"approved, and failed later":          {change: []func(*request){with("Approved", now), with("Failed", later)}, want: hour},
		"failed, and approved later":          {change: []func(*request){with("Approved", later), with("Failed", now)}, want: hour},
		"approved without a time, and failed": {change: []func(*request){with("Approved", never), with("Failed", later)}, want: later.Add(time.Hour)},
		"issued":                              {change: []func(*request){with("Approved", now), issued(day)}, want: hour},
		"issued, expires before":              {change: []func(*request){with("Approved", now), issued(later)}, want: later},
		"issued, has expired":                 {change: []func(*request){with("Approved", now), issued(now.Add(-time.Hour))}, want: now.Add(-time.Hour)},
		"issued without a time, has expired":  {change: []func(*request){with("Approved", never), issued(now.Add(-time.Hour))}, want: now.Add(-time.Hour)},
		"denied, yet issued":                  {change: []func(*request){with("Denied", now), issued(now.Add(-time.Hour))}, want: hour},
		"not a certificate":                   {change: []func(*request){with("Approved", now), bytes("garbage")}, want: hour},
		"a broken certificate":                {change: []func(*request){with("Approved", now), bytes(string(block("CERTIFICATE", []byte("x"))))}, want: hour},
		"a chain, of which the first counts": {
			change: []func(*request){with("Approved", now), func(obj *request) {
				obj.Status.Certificate = append(certificateUntil(t, later), certificateUntil(t, now)...)
			}}, want: later,
		},

		"own approved":             {change: []func(*request){with("Approved", now)}, policy: &csr.RetentionPolicy{Default: own(func(r *csr.Retention) { r.Approved = time.Minute })}, want: now.Add(time.Minute)},
		"own denied":               {change: []func(*request){with("Denied", now)}, policy: &csr.RetentionPolicy{Default: own(func(r *csr.Retention) { r.Denied = time.Minute })}, want: now.Add(time.Minute)},
		"own failed":               {change: []func(*request){with("Failed", now)}, policy: &csr.RetentionPolicy{Default: own(func(r *csr.Retention) { r.Failed = time.Minute })}, want: now.Add(time.Minute)},
		"own pending":              {policy: &csr.RetentionPolicy{Default: own(func(r *csr.Retention) { r.Pending = time.Minute })}, want: now.Add(time.Minute)},
		"own expired":              {change: []func(*request){with("Approved", now), issued(later)}, policy: &csr.RetentionPolicy{Default: own(func(r *csr.Retention) { r.Expired = time.Minute })}, want: later.Add(time.Minute)},
		"zero is the default":      {change: []func(*request){with("Denied", now)}, policy: &csr.RetentionPolicy{Default: own(func(r *csr.Retention) { r.Denied = 0 })}, want: hour},
		"negative is never":        {policy: &csr.RetentionPolicy{Default: own(func(r *csr.Retention) { r.Pending = ever })}, want: never},
		"negative, another counts": {change: []func(*request){with("Approved", now), with("Failed", later)}, policy: &csr.RetentionPolicy{Default: own(func(r *csr.Retention) { r.Approved = ever })}, want: later.Add(time.Hour)},
		"negative for expired":     {change: []func(*request){with("Approved", now), issued(now.Add(-time.Hour))}, policy: &csr.RetentionPolicy{Default: own(func(r *csr.Retention) { r.Expired = ever })}, want: hour},
		"of the signer": {
			policy: &csr.RetentionPolicy{Default: defaults, Signers: map[string]csr.Retention{"kubernetes.io/kube-apiserver-client-kubelet": {Pending: time.Minute}}},
			want:   now.Add(time.Minute),
		},
		"of another signer": {
			policy: &csr.RetentionPolicy{Default: defaults, Signers: map[string]csr.Retention{"kubernetes.io/kubelet-serving": {Pending: time.Minute}}},
			want:   day,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := csr.RetentionPolicy{Default: csr.DefaultRetention}
			if test.policy != nil {
				policy = *test.policy
			}
			at, ok := policy.Deadline(due(test.change))
			if !at.Equal(test.want) || ok != !test.want.IsZero() {
				t.Errorf("due at %s (%t), want %s", at, ok, test.want)
			}
		})
	}
}

func due(changes []func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	obj := &certificatesv1.CertificateSigningRequest{}
	obj.CreationTimestamp = metav1.NewTime(now)
	obj.Spec.SignerName = "kubernetes.io/kube-apiserver-client-kubelet"
	for _, change := range changes {
		change(obj)
	}
	return obj
}
