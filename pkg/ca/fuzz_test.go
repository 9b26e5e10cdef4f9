package ca_test

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// said is the content of a request or of a certificate, in comparable form.
type said struct {
	Subject  pkix.Name
	DNS      []string
	Emails   []string
	IPs      []string
	URIs     []string
	KeyUsage x509.KeyUsage
	Extended []x509.ExtKeyUsage
}

// sorted sorts the values of a subject, which are sets in DER.
func sorted(name pkix.Name) pkix.Name {
	name.Names, name.ExtraNames = nil, nil
	for _, values := range []*[]string{
		&name.Country, &name.Organization, &name.OrganizationalUnit, &name.Locality, &name.Province, &name.StreetAddress, &name.PostalCode,
	} {
		*values = slices.Sorted(slices.Values(*values))
	}
	return name
}

func addresses(ips []net.IP, uris []*url.URL) (ip, uri []string) {
	for _, one := range ips {
		ip = append(ip, one.String())
	}
	for _, one := range uris {
		uri = append(uri, one.String())
	}
	return ip, uri
}

// FuzzIssue checks that a certificate has the content of its request, and nothing else.
func FuzzIssue(f *testing.F) {
	f.Add("system:node:a", "system:nodes", "a.example.com", "", []byte{10, 0, 0, 1}, "", uint16(5), []byte{2}, int64(3600))
	f.Add("ü*", "a,b,a", "", "a@example.com,b@example.com", make([]byte, 20), "spiffe://example.com/a#b", uint16(511), []byte{0, 1, 1, 13}, int64(-1))
	f.Add("", ",", ",", ",", []byte(nil), "urn:a,HTTP://a.example.com", uint16(0), []byte(nil), int64(1)<<40)
	signing, signingEnd := authority("P-256"), now.AddDate(0, 0, 5)
	leaf, rules := keys["leaf"]().Public(), profile(ca.ProfileConfig{Lifetime: 24 * time.Hour, MaxLifetime: 30 * 24 * time.Hour})

	f.Fuzz(func(t *testing.T, name, organizations, dns, emails string, ips []byte, uris string, usage uint16, extended []byte, seconds int64) {
		req := ca.Request{
			PublicKey: leaf,
			Subject: pkix.Name{
				CommonName: name, SerialNumber: emails, Organization: list(organizations), OrganizationalUnit: list(dns), Country: list(name),
			},
			DNSNames:       list(dns),
			EmailAddresses: list(emails),
			KeyUsage:       x509.KeyUsage(usage % 512),
			Lifetime:       time.Duration(seconds) * time.Second,
		}
		for len(ips) >= 4 {
			length := net.IPv4len
			if len(ips) >= net.IPv6len && ips[0]%2 == 0 {
				length = net.IPv6len
			}
			req.IPAddresses, ips = append(req.IPAddresses, ips[:length]), ips[length:]
		}
		for _, one := range list(uris) {
			if parsed, err := url.Parse(one); err == nil {
				req.URIs = append(req.URIs, parsed)
			}
		}
		for _, one := range extended {
			req.ExtKeyUsage = append(req.ExtKeyUsage, x509.ExtKeyUsage(one%14))
		}
		issued, err := signing.Issue(rules, req, now)
		if err != nil {
			return // ASN.1 has no form for it, such as a DNS name that is not ASCII
		}
		certs, err := ca.ParseCertificates(issued.PEM)
		if err != nil {
			return // x509 writes, but does not parse, URI hosts that are no domains; such a request does not parse either
		}
		cert := certs[0]
		checkSaid(t, req, cert)
		checkInvariants(t, cert, leaf, signingEnd)
	})
}

func checkSaid(t *testing.T, req ca.Request, cert *x509.Certificate) {
	t.Helper()
	asked := said{Subject: sorted(req.Subject), DNS: req.DNSNames, Emails: req.EmailAddresses, KeyUsage: req.KeyUsage, Extended: req.ExtKeyUsage}
	asked.IPs, asked.URIs = addresses(req.IPAddresses, req.URIs)
	got := said{Subject: sorted(cert.Subject), DNS: cert.DNSNames, Emails: cert.EmailAddresses, KeyUsage: cert.KeyUsage, Extended: cert.ExtKeyUsage}
	got.IPs, got.URIs = addresses(cert.IPAddresses, cert.URIs)
	if diff := cmp.Diff(asked, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("request and certificate differ (-request +certificate):\n%s", diff)
	}
}

func checkInvariants(t *testing.T, cert *x509.Certificate, leaf crypto.PublicKey, signingEnd time.Time) {
	t.Helper()
	if cert.IsCA || !cert.BasicConstraintsValid || len(cert.UnknownExtKeyUsage) > 0 {
		t.Errorf("CA %t, basic constraints %t, unknown extended usages %v", cert.IsCA, cert.BasicConstraintsValid, cert.UnknownExtKeyUsage)
	}
	if !cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(leaf) {
		t.Error("another public key")
	}
	if cert.NotAfter.After(signingEnd) || !cert.NotBefore.Equal(now.Add(-5*time.Minute)) || cert.SerialNumber.Sign() <= 0 {
		t.Errorf("valid from %s to %s, serial %s", cert.NotBefore, cert.NotAfter, cert.SerialNumber)
	}
	for _, extension := range cert.Extensions {
		if !slices.Contains([]string{"2.5.29.15", "2.5.29.37", "2.5.29.19", "2.5.29.35", "2.5.29.17"}, extension.Id.String()) {
			t.Errorf("extension %s", extension.Id)
		}
	}
}

// list splits text at its commas. An empty text has no values.
func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
