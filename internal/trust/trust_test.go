package trust

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func newCert(t testing.TB, name string, lifetime time.Duration) (*x509.Certificate, string) {
	t.Helper()
	made, _, err := ca.New(ca.NewOptions{CommonName: name, Lifetime: lifetime}, now)
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode(made.CertificatePEM())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || len(rest) > 0 {
		t.Fatal(err, rest)
	}
	return cert, string(made.CertificatePEM())
}

// TestWithout checks that only the retired CA is removed, and that some CA is left.
func TestWithout(t *testing.T) {
	t.Parallel()
	old, _ := newCert(t, "same name", time.Hour)
	namesake, _ := newCert(t, "same name", time.Hour)
	other, _ := newCert(t, "other", time.Hour)
	for name, test := range map[string]struct {
		certs, want []*x509.Certificate
		err         bool
	}{
		"not there":                   {certs: []*x509.Certificate{other}, want: []*x509.Certificate{other}},
		"nothing at all":              {},
		"twice":                       {certs: []*x509.Certificate{old, other, old}, want: []*x509.Certificate{other}},
		"a CA of the same name stays": {certs: []*x509.Certificate{namesake, old}, want: []*x509.Certificate{namesake}},
		"nothing would be left":       {certs: []*x509.Certificate{old}, err: true},
	} {
		if got, err := without(test.certs, old); !slices.EqualFunc(got, test.want, (*x509.Certificate).Equal) || (err != nil) != test.err {
			t.Errorf("%s: %d certificates, want %d, error %v", name, len(got), len(test.want), err)
		}
	}
}

// TestNames checks the names, and that a missing right is named.
func TestNames(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "ca", errors.New("no"))
	at := configMaps(Wanted{Bundle: []byte("x"), ConfigMaps: []ConfigMapKey{{"ns", "ca", "ca.crt"}, {"ns", "ca", "b"}}})[0]
	for err, want := range map[error]string{
		forbidden:             "it can't be written: grant the manager get, create and patch on configmaps ca in namespace ns (" + forbidden.Error() + ")",
		errors.New("timeout"): "it can't be written: timeout",
	} {
		if got := withGrant("it can't be written", err, at.grant); got.Error() != want || !errors.Is(got, err) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	bundle := BundleName("kubernetes.io/kube-apiserver-client", "cluster")
	if at.String() != "ConfigMap ns/ca" || bundle != "kubernetes.io:kube-apiserver-client:cluster" {
		t.Errorf("it is %s, and the bundle is %s", at, bundle)
	}
}
