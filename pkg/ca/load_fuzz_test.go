package ca_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// pieces are parts of Secrets and CA files. A recipe selects and changes them, so that no corpus holds a key.
type pieces struct {
	parts   [][]byte
	secrets []string // base64 lines of the keys
}

func newPieces(t testing.TB) *pieces {
	t.Helper()
	var none *link
	root := none.below(t, "root", "P-384")
	middle := root.below(t, "middle", "Ed25519")
	signing := middle.below(t, "signing", "P-256")
	leaf := root.below(t, "leaf", "leaf", func(c *x509.Certificate) { c.IsCA = false })
	later := root.below(t, "signing", "P-256", func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(time.Hour) })
	impostor := none.below(t, "middle", "P-521")
	sec1, err := x509.MarshalECPrivateKey(keys["P-256"]().(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	p := &pieces{parts: [][]byte{
		signing.pem, pkcs8(t, keys["P-256"]()), middle.pem, root.pem, leaf.pem, later.pem, impostor.pem,
		block("EC PRIVATE KEY", sec1), pkcs8(t, keys["leaf"]()), pkcs8(t, keys["P-384"]()),
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
	p := newPieces(f)
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
		if given, err := ca.ParseCertificates(caPEM); err == nil && len(given) > 0 {
			checkAnchored(t, loaded, given)
		}
	})
}

// checkLoaded checks that one of given holds the signing certificate and each appended certificate, that a verifier with the
// last certificate of the chain accepts a leaf, and that no self-signed certificate is appended.
func checkLoaded(t *testing.T, loaded *ca.Authority, given ...[]byte) {
	t.Helper()
	cert := loaded.Certificate()
	if !cert.IsCA || cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		t.Errorf("%q may not sign certificates", cert.Subject)
	}
	known := map[string]bool{}
	for _, data := range given { // each on its own: the end of one may spoil the beginning of the next
		for first, rest := pem.Decode(data); first != nil; first, rest = pem.Decode(rest) {
			known[string(first.Bytes)] = true
		}
	}
	issued := issue(t, loaded)
	chain, err := ca.ParseCertificates(issued.PEM)
	if err != nil {
		t.Fatal(err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, appended := range chain[1:] {
		// One with its own name as the issuer may be signed by an older key of that name (RFC 4210 section 4.4).
		if bytes.Equal(appended.RawSubject, appended.RawIssuer) && appended.CheckSignature(appended.SignatureAlgorithm, appended.RawTBSCertificate, appended.Signature) == nil {
			t.Errorf("the chain holds the self-signed %q", appended.Subject)
		}
		if !known[string(appended.Raw)] {
			t.Errorf("the chain holds %q, which was not given", appended.Subject)
		}
		between.AddCert(appended)
	}
	if !known[string(cert.Raw)] {
		t.Errorf("signs with %q, which was not given", cert.Subject)
	}
	roots.AddCert(cert)
	options := x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if _, err := chain[0].Verify(options); err != nil {
		t.Errorf("the leaf is not accepted: %v", err)
	}
}

// checkAnchored checks that a verifier that trusts only the anchors accepts a leaf with its chain. An anchor is a name and
// a key (RFC 5280 section 6.1.1), so a certificate of the chain with the name and the key of an anchor is trusted too.
func checkAnchored(t *testing.T, loaded *ca.Authority, anchors []*x509.Certificate) {
	t.Helper()
	chain, err := ca.ParseCertificates(issue(t, loaded).PEM)
	if err != nil {
		t.Fatal(err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, anchor := range anchors {
		roots.AddCert(anchor)
	}
	for _, cert := range append(chain[1:], loaded.Certificate()) {
		between.AddCert(cert)
		if slices.ContainsFunc(anchors, func(anchor *x509.Certificate) bool {
			return bytes.Equal(anchor.RawSubject, cert.RawSubject) && bytes.Equal(anchor.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo)
		}) {
			roots.AddCert(cert)
		}
	}
	options := x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if _, err := chain[0].Verify(options); err != nil {
		t.Errorf("the chain does not end in ca.crt: %v", err)
	}
}
