package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

var lintNow = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func lintKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

// lintCA returns a CA and the default profile.
func lintCA() (*Authority, Profile) {
	signing, _, err := New(NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, lintNow)
	return must(signing, err), must(NewProfile(ProfileConfig{}))
}

// judged returns a request with content in each field.
func judged() Request {
	return Request{
		PublicKey: lintKey().Public(),
		Subject: pkix.Name{
			CommonName: "system:node:a", Organization: []string{"system:nodes", "another"}, OrganizationalUnit: []string{"unit"},
			Country: []string{"CH"}, Locality: []string{"Z"}, Province: []string{"ZH"}, StreetAddress: []string{"1"},
			PostalCode: []string{"8000"}, SerialNumber: "7",
		},
		DNSNames: []string{"a.example.com", "b.example.com"}, EmailAddresses: []string{"a@example.com"},
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/a b"}},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageDecipherOnly,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		Lifetime:    time.Hour,
	}
}

// TestLintFindsEachDifference changes one field after the request was judged, as a fault in the signer would.
func TestLintFindsEachDifference(t *testing.T) {
	t.Parallel()
	signing, profile := lintCA()
	req := judged()
	extension := func(critical bool, value []byte, id ...int) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: id, Critical: critical, Value: value}}
		}
	}
	for name, test := range map[string]struct {
		want   string // empty means no difference
		change func(*x509.Certificate)
	}{
		"no difference":            {"", func(*x509.Certificate) {}},
		"serial":                   {"serial is 8, want 7", func(c *x509.Certificate) { c.SerialNumber = big.NewInt(8) }},
		"common name":              {"subject is", func(c *x509.Certificate) { c.Subject.CommonName = "system:node:b" }},
		"an organization more":     {"subject is", func(c *x509.Certificate) { c.Subject.Organization = append(c.Subject.Organization, "x") }},
		"a DNS name more":          {"DNS name", func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, "kubernetes.default.svc") }},
		"DNS names in other order": {"DNS name", func(c *x509.Certificate) { slices.Reverse(c.DNSNames) }},
		"an email address":         {"email address", func(c *x509.Certificate) { c.EmailAddresses = nil }},
		"an IP address":            {"IP address", func(c *x509.Certificate) { c.IPAddresses = c.IPAddresses[:1] }},
		"a URI":                    {"URI", func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/b"}} }},
		"a key usage":              {"key usage", func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }},
		"an extended key usage":    {"extended key usage", func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageAny) }},
		"a CA":                     {"CA is true", func(c *x509.Certificate) { c.IsCA = true }},
		"no basic constraints":     {"CA is false", func(c *x509.Certificate) { c.BasicConstraintsValid = false }},
		"begin":                    {"begin", func(c *x509.Certificate) { c.NotBefore = c.NotBefore.Add(-time.Second) }},
		"end":                      {"end", func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(time.Second) }},
		"a foreign extension":      {"extension 1.2.3, critical false, is not permitted", extension(false, []byte{5, 0}, 1, 2, 3)},
		"another authority key":    {"authority key identifier", extension(false, []byte{0x30, 3, 0x80, 1, 1}, 2, 5, 29, 35)},
		"a key identifier":         {"extension 2.5.29.14, critical false, is not", func(c *x509.Certificate) { c.SubjectKeyId = []byte{1} }},
		"another attribute": {"subject is", func(c *x509.Certificate) {
			c.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{1, 2, 3}, Value: "x"}}
		}},
		"another key": {"key is", nil},
	} {
		issued := &Issued{Serial: big.NewInt(7)}
		issued.NotBefore, issued.NotAfter, _ = signing.validity(profile.LifetimeOf(req.Lifetime), lintNow)
		template := &x509.Certificate{
			SerialNumber: issued.Serial, Subject: req.Subject, NotBefore: issued.NotBefore, NotAfter: issued.NotAfter,
			DNSNames: slices.Clone(req.DNSNames), EmailAddresses: req.EmailAddresses, IPAddresses: req.IPAddresses, URIs: req.URIs,
			KeyUsage: req.KeyUsage, ExtKeyUsage: slices.Clone(req.ExtKeyUsage), BasicConstraintsValid: true,
		}
		key := req.PublicKey
		if test.change == nil {
			key = lintKey().Public()
		} else {
			test.change(template)
		}
		der := must(x509.CreateCertificate(rand.Reader, template, signing.cert, key, signing.key))
		got := strings.Join(signing.lint(der, issued, profile, req), "; ")
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: found %q, want %q", name, got, test.want)
		}
	}
}

// TestIssueRefusesWhatDiffersFromTheRequest passes a subject to Issue that crypto/x509 does not write as it was read.
func TestIssueRefusesWhatDiffersFromTheRequest(t *testing.T) {
	t.Parallel()
	signing, profile := lintCA()
	req := judged()
	must(signing.Issue(profile, req, lintNow))
	req.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 10}, Value: "system:masters"}}
	issued, err := signing.Issue(profile, req, lintNow)
	var lint *LintError
	if issued != nil || !errors.As(err, &lint) || lint.Serial.Sign() <= 0 || !strings.Contains(err.Error(), "subject is") {
		t.Errorf("%+v, error %v", issued, err)
	}
}
