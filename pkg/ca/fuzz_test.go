package ca_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// said returns the content of a request or of a certificate in comparable form. The values of a subject are sets in DER.
func said(name pkix.Name, dns, emails []string, ips []net.IP, uris []*url.URL, usage x509.KeyUsage, extended []x509.ExtKeyUsage) []string {
	all := []string{"CN=" + name.CommonName, "number=" + name.SerialNumber, fmt.Sprintf("%q %q %v %v %b %v", dns, emails, ips, uris, usage, extended)}
	for kind, values := range [][]string{
		name.Country, name.Organization, name.OrganizationalUnit, name.Locality, name.Province, name.StreetAddress, name.PostalCode,
	} {
		for _, value := range values {
			all = append(all, fmt.Sprint(kind, "=", value))
		}
	}
	slices.Sort(all)
	return all
}

func checkSaid(t *testing.T, req ca.Request, cert *x509.Certificate) {
	t.Helper()
	asked := said(req.Subject, req.DNSNames, req.EmailAddresses, req.IPAddresses, req.URIs, req.KeyUsage, req.ExtKeyUsage)
	got := said(cert.Subject, cert.DNSNames, cert.EmailAddresses, cert.IPAddresses, cert.URIs, cert.KeyUsage, cert.ExtKeyUsage)
	if diff := cmp.Diff(asked, got); diff != "" {
		t.Errorf("request and certificate differ (-request +certificate):\n%s", diff)
	}
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

// pieces are parts of Secrets and CA files. A recipe selects and changes them, so that no corpus holds a key.
type pieces struct {
	parts   [][]byte
	secrets []string // base64 lines of the keys
}

func newPieces() *pieces {
	top := root("root", "P-384")
	middle := top.below("middle", "Ed25519")
	signing := middle.below("signing", "P-256")
	leaf := top.below("leaf", "leaf", func(c *x509.Certificate) { c.IsCA = false })
	later := top.below("signing", "P-256", func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(time.Hour) })
	impostor := root("middle", "P-521")
	sec1 := must(x509.MarshalECPrivateKey(keys["P-256"]().(*ecdsa.PrivateKey)))
	p := &pieces{parts: [][]byte{
		signing.pem, pkcs8(keys["P-256"]()), middle.pem, top.pem, leaf.pem, later.pem, impostor.pem,
		block("EC PRIVATE KEY", sec1), pkcs8(keys["leaf"]()), pkcs8(keys["P-384"]()),
		block("CERTIFICATE", []byte("garbage")), block("EC PARAMETERS", []byte{6, 1, 1}), []byte("# text\n"), nil,
	}}
	for _, part := range p.parts {
		if bytes.Contains(part, []byte("PRIVATE KEY")) {
			for line := range strings.Lines(string(part)) {
				if !strings.HasPrefix(line, "-----") && len(line) > 32 {
					p.secrets = append(p.secrets, strings.TrimSpace(line))
				}
			}
		}
	}
	return p
}

// cook returns the concatenation of the pieces that recipe selects, two bytes for each: a piece, and a change.
func (p *pieces) cook(recipe []byte) []byte {
	var all []byte
	for ; len(recipe) > 1; recipe = recipe[2:] {
		part := slices.Clone(p.parts[int(recipe[0])%len(p.parts)])
		change := int(recipe[1])
		switch at := change / 8 * len(part) / 32; change % 8 {
		case 1: // cut
			part = part[:at]
		case 2: // flip
			if len(part) > 0 {
				part[at] ^= 1
			}
		case 3:
			part = bytes.ReplaceAll(part, []byte("\n"), []byte("\r\n"))
		case 4:
			part = bytes.ReplaceAll(part, []byte("EC PRIVATE KEY"), []byte("RSA PRIVATE KEY"))
		case 5:
			part = bytes.Replace(part, []byte("-----\n"), []byte("-----\nDEK-Info: a\n\n"), 1)
		case 6:
			part = bytes.ReplaceAll(part, []byte("CERTIFICATE"), []byte("TRUSTED CERTIFICATE"))
		}
		all = append(all, part...)
	}
	return all
}

// FuzzLoad checks that a loaded CA is one with which a strict verifier accepts what it issues, and that no error shows
// a line of the key.
func FuzzLoad(f *testing.F) {
	for _, seed := range [][3][]byte{
		{{0, 0}, {1, 0}, nil}, {{0, 0, 2, 0, 3, 0}, {1, 0}, {3, 0}}, {{2, 0, 0, 0}, {11, 0, 7, 0}, {3, 0, 6, 0}}, {{3, 0}, {9, 0}, {3, 0}},
		{{5, 0, 0, 0}, {7, 4}, nil}, {{4, 0}, {8, 0}, nil}, {{0, 0, 6, 0}, {1, 0}, nil}, {{0, 0}, {1, 0}, {6, 0}}, {{0, 3, 12, 0}, {12, 0, 1, 3}, {10, 0}},
		{{0, 6}, {1, 5}, nil}, {{0, 65}, {1, 66}, nil},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	p := newPieces()
	f.Fuzz(func(t *testing.T, certs, key, anchors []byte) {
		if len(certs)+len(key)+len(anchors) > 64 {
			return // a chain of more certificates says nothing new, and takes long
		}
		certPEM, keyPEM, caPEM := p.cook(certs), p.cook(key), p.cook(anchors)
		loaded, err := ca.Load(certPEM, keyPEM, caPEM)
		if (loaded == nil) == (err == nil) {
			t.Fatalf("loaded %v, error %v", loaded, err)
		}
		if err != nil {
			for _, secret := range p.secrets {
				if strings.Contains(err.Error(), secret[:16]) {
					t.Error("the error shows the key")
				}
			}
			return
		}
		if loaded.Usable(now) != nil {
			return // a flipped bit of its validity
		}
		checkLoaded(t, loaded, certPEM, caPEM)
	})
}

// checkLoaded checks that one of certPEM and caPEM holds the signing certificate and each appended certificate, and that no
// self-signed certificate is appended. A verifier accepts a leaf with its chain, if it trusts the CA, and if it trusts only caPEM. An
// anchor is a name and a key (RFC 5280 section 6.1.1), so a certificate with the name and the key of an anchor is trusted too.
func checkLoaded(t *testing.T, loaded *ca.Authority, certPEM, caPEM []byte) {
	t.Helper()
	signing := loaded.Certificate()
	if !signing.IsCA || signing.KeyUsage != 0 && signing.KeyUsage&x509.KeyUsageCertSign == 0 {
		t.Errorf("%q may not sign certificates", signing.Subject)
	}
	known := map[string]bool{}
	for _, data := range [][]byte{certPEM, caPEM} { // each on its own: the end of one may spoil the beginning of the next
		for first, rest := pem.Decode(data); first != nil; first, rest = pem.Decode(rest) {
			known[string(first.Bytes)] = true
		}
	}
	anchors, err := ca.ParseCertificates(caPEM)
	if err != nil {
		anchors = nil
	}
	chain := must(ca.ParseCertificates(issue(loaded).PEM))
	signed, anchored, between := x509.NewCertPool(), x509.NewCertPool(), x509.NewCertPool()
	for _, cert := range append(chain[1:len(chain):len(chain)], signing) {
		// One with its own name as the issuer may be signed by an older key of that name (RFC 4210 section 4.4).
		own := cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
		if cert != signing && own && bytes.Equal(cert.RawSubject, cert.RawIssuer) || !known[string(cert.Raw)] {
			t.Errorf("the chain holds %q, which is self-signed or was not given", cert.Subject)
		}
		between.AddCert(cert)
		if slices.ContainsFunc(anchors, func(anchor *x509.Certificate) bool {
			return bytes.Equal(anchor.RawSubject, cert.RawSubject) && bytes.Equal(anchor.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo)
		}) {
			anchored.AddCert(cert)
		}
	}
	signed.AddCert(signing)
	for _, anchor := range anchors {
		anchored.AddCert(anchor)
	}
	if err := verify(chain[0], signed, between); err != nil {
		t.Errorf("the leaf is not accepted: %v", err)
	}
	if err := verify(chain[0], anchored, between); err != nil && len(anchors) > 0 {
		t.Errorf("the chain does not end in ca.crt: %v", err)
	}
}
