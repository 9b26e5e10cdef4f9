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
	"strings"
	"testing"
	"time"
)

var lintNow = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func lintKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// judged returns a request with content in each field.
func judged(t *testing.T) Request {
	t.Helper()
	return Request{
		PublicKey: lintKey(t).Public(),
		Subject: pkix.Name{
			CommonName: "system:node:a", Organization: []string{"system:nodes", "another"}, OrganizationalUnit: []string{"unit"},
			Country: []string{"CH"}, Locality: []string{"Z"}, Province: []string{"ZH"}, StreetAddress: []string{"1"}, PostalCode: []string{"8000"}, SerialNumber: "7",
		},
		DNSNames: []string{"a.example.com", "b.example.com"}, EmailAddresses: []string{"a@example.com"},
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")}, URIs: []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/a b"}},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageDecipherOnly, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		Lifetime: time.Hour,
	}
}

// TestLintFindsEachDifference changes one field after the request was judged, as a fault in the signer would.
func TestLintFindsEachDifference(t *testing.T) {
	t.Parallel()
	signing, _, err := New(NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, lintNow)
	if err != nil {
		t.Fatal(err)
	}
	profile, err := NewProfile(ProfileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	req := judged(t)
	for name, test := range map[string]struct {
		change func(*x509.Certificate)
		key    any
		want   string // empty means no difference
	}{
		"no difference":        {change: func(*x509.Certificate) {}},
		"serial":               {change: func(c *x509.Certificate) { c.SerialNumber = big.NewInt(8) }, want: "serial is 8, want 7"},
		"common name":          {change: func(c *x509.Certificate) { c.Subject.CommonName = "system:node:b" }, want: "subject is"},
		"an organization more": {change: func(c *x509.Certificate) { c.Subject.Organization = append(c.Subject.Organization, "system:masters") }, want: "subject is"},
		"an organization less": {change: func(c *x509.Certificate) { c.Subject.Organization = c.Subject.Organization[:1] }, want: "subject is"},
		"another attribute": {change: func(c *x509.Certificate) {
			c.Subject.ExtraNames = append(c.Subject.ExtraNames, pkix.AttributeTypeAndValue{Type: []int{1, 2, 3}, Value: "x"})
		}, want: "subject is"},
		"a unit":                   {change: func(c *x509.Certificate) { c.Subject.OrganizationalUnit = nil }, want: "subject is"},
		"a serial number":          {change: func(c *x509.Certificate) { c.Subject.SerialNumber = "8" }, want: "subject is"},
		"a DNS name more":          {change: func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, "kubernetes.default.svc") }, want: "DNS name"},
		"DNS names in other order": {change: func(c *x509.Certificate) { c.DNSNames = []string{"b.example.com", "a.example.com"} }, want: "DNS name"},
		"an email address":         {change: func(c *x509.Certificate) { c.EmailAddresses = nil }, want: "email address"},
		"an IP address":            {change: func(c *x509.Certificate) { c.IPAddresses = c.IPAddresses[:1] }, want: "IP address"},
		"a URI":                    {change: func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/b"}} }, want: "URI"},
		"a key usage":              {change: func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }, want: "key usage"},
		"an extended key usage":    {change: func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageAny) }, want: "extended key usage"},
		"an unknown usage":         {change: func(c *x509.Certificate) { c.UnknownExtKeyUsage = append(c.UnknownExtKeyUsage, []int{1, 2, 3}) }, want: "extended key usage"},
		"no extended key usage":    {change: func(c *x509.Certificate) { c.ExtKeyUsage = nil }, want: "extended key usage"},
		"a CA":                     {change: func(c *x509.Certificate) { c.IsCA = true }, want: "CA is true"},
		"no basic constraints":     {change: func(c *x509.Certificate) { c.BasicConstraintsValid = false }, want: "CA is false"},
		"begin":                    {change: func(c *x509.Certificate) { c.NotBefore = c.NotBefore.Add(-time.Second) }, want: "begin"},
		"end":                      {change: func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(time.Second) }, want: "end"},
		"a foreign extension": {change: func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3}, Value: []byte{5, 0}}}
		}, want: "extension 1.2.3, critical false, is not permitted"},
		"a critical usage": {change: func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 37}, Critical: true, Value: []byte{0x30, 0}}}
		}, want: "extension 2.5.29.37, critical true, is not permitted"},
		"another authority key": {change: func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 35}, Value: []byte{0x30, 3, 0x80, 1, 1}}}
		}, want: "authority key identifier"},
		"a key identifier": {change: func(c *x509.Certificate) { c.SubjectKeyId = []byte{1} }, want: "extension 2.5.29.14, critical false, is not permitted"},
		"a policy":         {change: func(c *x509.Certificate) { c.Policies = []x509.OID{must(x509.OIDFromInts([]uint64{1, 2, 3}))} }, want: "extension 2.5.29.32, critical false, is not permitted"},
		"another key":      {change: func(*x509.Certificate) {}, key: lintKey(t).Public(), want: "key is"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			issued := &Issued{Serial: big.NewInt(7)}
			issued.NotBefore, issued.NotAfter, _ = signing.validity(profile.lifetime(req.Lifetime), lintNow)
			template := &x509.Certificate{
				SerialNumber: issued.Serial, Subject: req.Subject, NotBefore: issued.NotBefore, NotAfter: issued.NotAfter,
				DNSNames: req.DNSNames[:2:2], EmailAddresses: req.EmailAddresses, IPAddresses: req.IPAddresses, URIs: req.URIs,
				KeyUsage: req.KeyUsage, ExtKeyUsage: req.ExtKeyUsage[:2:2], BasicConstraintsValid: true,
			}
			template.Subject.Organization = req.Subject.Organization[:2:2]
			test.change(template)
			key := test.key
			if key == nil {
				key = req.PublicKey
			}
			der, err := x509.CreateCertificate(rand.Reader, template, signing.cert, key, signing.key)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(signing.lint(der, issued, profile, req), "; ")
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// TestIssueRefusesWhatDiffersFromTheRequest passes subjects to Issue that crypto/x509 does not write as they were
// read.
func TestIssueRefusesWhatDiffersFromTheRequest(t *testing.T) {
	t.Parallel()
	signing, _, err := New(NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, lintNow)
	if err != nil {
		t.Fatal(err)
	}
	profile, err := NewProfile(ProfileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	req := judged(t)
	if _, err := signing.Issue(profile, req, lintNow); err != nil {
		t.Fatal(err)
	}
	req.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 10}, Value: "system:masters"}}
	issued, err := signing.Issue(profile, req, lintNow)
	var lint *LintError
	if issued != nil || !errors.As(err, &lint) || lint.Serial.Sign() <= 0 || !strings.Contains(err.Error(), "subject is") {
		t.Errorf("%+v, error %v", issued, err)
	}
}

// TestContentsBoundAProfile exceeds the permitted contents of a profile in each way.
func TestContentsBoundAProfile(t *testing.T) {
	t.Parallel()
	signing, _, err := New(NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, lintNow)
	if err != nil {
		t.Fatal(err)
	}
	all := func() *Contents {
		return &Contents{
			CommonNamePrefix: "system:node:", Organizations: []string{"another", "system:nodes"}, DNSNames: true, EmailAddresses: true,
			IPAddresses: true, URIs: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageDecipherOnly,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}
	}
	for want, change := range map[string]func(*Contents){
		"":                          func(*Contents) {},
		"common name":               func(c *Contents) { c.CommonNamePrefix = "system:node:b" },
		"organization [":            func(c *Contents) { c.Organizations = []string{"system:nodes"} },
		"a DNS name is not":         func(c *Contents) { c.DNSNames = false },
		"an email address is not":   func(c *Contents) { c.EmailAddresses = false },
		"an IP address is not":      func(c *Contents) { c.IPAddresses = false },
		"a URI is not":              func(c *Contents) { c.URIs = false },
		"key usage 100000000 is":    func(c *Contents) { c.KeyUsage = x509.KeyUsageDigitalSignature },
		"extended key usage 1 is n": func(c *Contents) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} },
	} {
		contents := all()
		change(contents)
		profile, err := NewProfile(ProfileConfig{Contents: contents})
		if err != nil {
			t.Fatal(err)
		}
		_, err = signing.Issue(profile, judged(t), lintNow)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v", want, err)
		}
	}
}
