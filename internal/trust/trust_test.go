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

func TestBundle(t *testing.T) {
	t.Parallel()
	candidate, candidatePEM := newCert(t, "new", time.Hour)
	old, oldPEM := newCert(t, "old", time.Minute)
	again, err := x509.ParseCertificate(candidate.Raw)
	if err != nil {
		t.Fatal(err)
	}
	both := []*x509.Certificate{candidate, old}
	for name, test := range map[string]struct {
		now   time.Time
		certs []*x509.Certificate
		want  string
	}{
		"nothing":                   {now, nil, ""},
		"one":                       {now, both[1:], oldPEM},
		"new first":                 {now, both, candidatePEM + oldPEM},
		"as given":                  {now, []*x509.Certificate{old, candidate}, oldPEM + candidatePEM},
		"twice":                     {now, []*x509.Certificate{candidate, old, again}, candidatePEM + oldPEM},
		"a second before it ends":   {old.NotAfter.Add(-time.Second), both, candidatePEM + oldPEM},
		"ended":                     {old.NotAfter, both, candidatePEM},
		"ended, and twice":          {old.NotAfter, []*x509.Certificate{old, candidate, old}, candidatePEM},
		"all ended":                 {candidate.NotAfter, both, ""},
		"not valid yet stays there": {now.Add(-24 * time.Hour), both, candidatePEM + oldPEM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := string(Bundle(test.now, test.certs...)); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestBundleName(t *testing.T) {
	t.Parallel()
	if got := BundleName("kubernetes.io/kube-apiserver-client", "cluster"); got != "kubernetes.io:kube-apiserver-client:cluster" {
		t.Errorf("got %s", got)
	}
}

// TestWithout checks that only the retired CA is removed, and that every other byte stays.
func TestWithout(t *testing.T) {
	t.Parallel()
	old, oldPEM := newCert(t, "same name", time.Hour)
	_, namesakePEM := newCert(t, "same name", time.Hour)
	_, otherPEM := newCert(t, "other", time.Hour)
	crlf := strings.ReplaceAll(otherPEM, "\n", "\r\n")
	odd := "-----BEGIN SOMETHING-----\nAAAA\n-----END SOMETHING-----\n"
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
		"damaged around it":            {data: "-----BEGIN CERTIFICATE-----\n" + oldPEM + "-----END CERTIFICATE-----\n" + otherPEM, err: "text that would be read as a certificate"},
		"damaged elsewhere":            {data: "-----BEGIN CERTIFICATE-----\n" + otherPEM + oldPEM, want: "-----BEGIN CERTIFICATE-----\n" + otherPEM},
		"cannot be read":               {data: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + oldPEM, err: "parse certificate 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := without([]byte(test.data), old)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || string(got) != test.want {
				t.Errorf("error %v, got\n%s\nwant\n%s", err, got, test.want)
			}
		})
	}
}

// TestWhy checks that a missing right is named.
func TestWhy(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "ca", errors.New("no"))
	at := configMap(ConfigMapKey{"ns", "ca", "ca.crt"}, []byte("x"))
	for err, want := range map[error]string{
		forbidden:             "can't be brought up to date: grant the manager get and update on configmaps ca in namespace ns, and create on configmaps there (" + forbidden.Error() + ")",
		errors.New("timeout"): "can't be brought up to date: timeout",
		errDiffers:            "is not up to date",
	} {
		if got := at.why(err); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if at.String() != "ConfigMap ns/ca" {
		t.Errorf("it is %s", at)
	}
}
