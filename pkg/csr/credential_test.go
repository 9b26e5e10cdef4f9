package csr

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
)

// TestCertificates checks which credential IDs stand for a certificate.
func TestCertificates(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("0a", 32), strings.Repeat("f9", 32)
	for name, test := range map[string]struct {
		ids  []string
		want []string
	}{
		"no ID":                      {},
		"a certificate":              {[]string{"X509SHA256=" + a}, []string{a}},
		"a token":                    {[]string{"JTI=0c1ccc3e-7dfd-4b9e-9c8a-6a3f4d3f9b11"}, nil},
		"a digest without a prefix":  {[]string{a}, nil},
		"upper-case digits":          {[]string{"X509SHA256=" + strings.ToUpper(a)}, []string{a}},
		"a lower-case prefix":        {[]string{"x509sha256=" + a}, nil},
		"too short":                  {[]string{"X509SHA256=" + a[2:]}, nil},
		"too long":                   {[]string{"X509SHA256=" + a + "00"}, nil},
		"an odd number of digits":    {[]string{"X509SHA256=" + a[1:]}, nil},
		"no hex digits":              {[]string{"X509SHA256=" + strings.Repeat("0g", 32)}, nil},
		"a space at the end":         {[]string{"X509SHA256=" + a + " "}, nil},
		"a line end":                 {[]string{"X509SHA256=" + a[1:] + "\n"}, nil},
		"an empty ID":                {[]string{""}, nil},
		"a prefix alone":             {[]string{"X509SHA256="}, nil},
		"several":                    {[]string{"X509SHA256=" + a, "JTI=1", "X509SHA256=" + b}, []string{a, b}},
		"after many others":          {append(slices.Repeat([]string{"JTI=1"}, 99), "X509SHA256="+a), []string{a}},
		"two certificates in one ID": {[]string{"X509SHA256=" + a + "," + b}, nil},
	} {
		requester := Requester{Extra: map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": test.ids}}
		if diff := cmp.Diff(test.want, requester.Certificates()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	other := Requester{Extra: map[string]certificatesv1.ExtraValue{"Authentication.Kubernetes.io/credential-id": {"X509SHA256=" + a}}}
	if got := other.Certificates(); got != nil {
		t.Errorf("another key counts: %q", got)
	}
}

// FuzzCertificates checks that no ID causes a panic, and that the result is always a SHA-256 in lower-case hex.
func FuzzCertificates(f *testing.F) {
	a := strings.Repeat("0a", 32)
	for _, id := range []string{"", "JTI=1", "X509SHA256=", "X509SHA256=" + a, "X509SHA256=" + strings.ToUpper(a)} {
		f.Add(id, "X509SHA256="+a)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		ids := certificatesv1.ExtraValue{first, second}
		for _, got := range (Requester{Extra: map[string]certificatesv1.ExtraValue{CredentialIDKey: ids}}).Certificates() {
			if len(got) != 64 || strings.Trim(got, "0123456789abcdef") != "" || !slices.ContainsFunc(ids, func(id string) bool {
				return strings.EqualFold(id, "X509SHA256="+got)
			}) {
				t.Errorf("%q of %q", got, ids)
			}
		}
	})
}
