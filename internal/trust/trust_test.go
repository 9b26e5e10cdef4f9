package trust

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
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

// TestWithout checks that only the retired CA is removed, and that every other byte stays.
func TestWithout(t *testing.T) {
	t.Parallel()
	old, oldPEM := newCert(t, "same name", time.Hour)
	_, namesakePEM := newCert(t, "same name", time.Hour)
	_, otherPEM := newCert(t, "other", time.Hour)
	crlf := strings.ReplaceAll(otherPEM, "\n", "\r\n")
	odd, begin := "-----BEGIN SOMETHING-----\nAAAA\n-----END SOMETHING-----\n", "-----BEGIN CERTIFICATE-----\n"
	for name, test := range map[string]struct{ data, want, err string }{
		"not there":                    {data: otherPEM, want: otherPEM},
		"nothing at all":               {data: "", want: ""},
		"first":                        {data: oldPEM + otherPEM, want: otherPEM},
		"last":                         {data: otherPEM + oldPEM, want: otherPEM},
		"twice":                        {data: oldPEM + otherPEM + oldPEM, want: otherPEM},
		"a CA of the same name stays":  {data: namesakePEM + oldPEM, want: namesakePEM},
		"text around stays":            {data: "# one\n" + oldPEM + "# two\n" + crlf + "\n\nend", want: "# one\n# two\n" + crlf + "\n\nend"},
		"other blocks stay":            {data: odd + oldPEM + otherPEM, want: odd + otherPEM},
		"nothing would be left":        {data: oldPEM, err: "no CA other than the retired CA"},
		"no certificate would be left": {data: odd + oldPEM + "# text", err: "no CA other than the retired CA"},
		"damaged around it":            {data: begin + oldPEM + "-----END CERTIFICATE-----\n" + otherPEM, err: "would be read as a certificate"},
		"damaged elsewhere":            {data: begin + otherPEM + oldPEM, want: begin + otherPEM},
		"cannot be read":               {data: begin + "AAAA\n-----END CERTIFICATE-----\n" + oldPEM, err: "parse certificate 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := without([]byte(test.data), old)
			if string(got) != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q, got\n%s\nwant\n%s", err, test.err, got, test.want)
			}
		})
	}
}

// TestNames checks the name of a bundle, and that a missing right is named.
func TestNames(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "ca", errors.New("no"))
	at := configMaps(Wanted{Bundle: []byte("x"), ConfigMaps: []ConfigMapKey{{"ns", "ca", "ca.crt"}, {"ns", "ca", "b"}}})[0]
	for err, want := range map[error]string{
		forbidden:             "can't be brought up to date: grant the manager get, create and patch on configmaps ca in namespace ns (" + forbidden.Error() + ")",
		errors.New("timeout"): "can't be brought up to date: timeout",
		errDiffers:            "is not up to date",
	} {
		if got := at.why(err); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	bundle := BundleName("kubernetes.io/kube-apiserver-client", "cluster")
	if at.String() != "ConfigMap ns/ca" || bundle != "kubernetes.io:kube-apiserver-client:cluster" {
		t.Errorf("it is %s, and the bundle is %s", at, bundle)
	}
}
