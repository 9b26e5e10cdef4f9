package publish

import (
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestWithout checks that only the retired CA is removed, and that some CA is left.
func TestWithout(t *testing.T) {
	newCert := func(name string) *x509.Certificate {
		made, _, err := ca.New(ca.NewOptions{CommonName: name, Lifetime: time.Hour}, time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
		expect.NoError(t, err)
		return made.Certificate()
	}
	old, namesake, other := newCert("same name"), newCert("same name"), newCert("other")
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
