package ca_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// old is the end of the certificates that link makes.
var old = now.AddDate(0, 0, 5)

// TestRenew checks that verifiers with one of the two certificates accept what was issued with the other one, and that the
// renewed certificate has what the present one has: key, subject, extensions.
func TestRenew(t *testing.T) {
	constrained := func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: "constrained", Organization: []string{"Ünïcode"}, ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: asn1.ObjectIdentifier{2, 5, 4, 97}, Value: "an attribute that crypto/x509 does not know"},
		}}
		c.PermittedDNSDomainsCritical, c.PermittedDNSDomains = true, []string{"example.com"}
		c.ExcludedIPRanges = []*net.IPNet{{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
		c.MaxPathLenZero, c.ExtKeyUsage = true, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		c.KeyUsage, c.SubjectKeyId = x509.KeyUsageCertSign|x509.KeyUsageCRLSign, []byte("not the hash of the key")
		c.CRLDistributionPoints, c.PolicyIdentifiers = []string{"http://example.com/crl"}, []asn1.ObjectIdentifier{{1, 2, 3}}
		c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: []byte{5, 0}}}
	}
	byIssuerAndSerial := func(c *x509.Certificate) { // as OpenSSL does with authorityKeyIdentifier=issuer:always; the serial number is 1
		c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 35}, Value: []byte{0x30, 3, 0x82, 1, 1}}}
	}
	roots := map[string]*link{
		"RSA": root("CA", "RSA-2048"), "ECDSA": root("CA", "P-256"), "P-521": root("CA", "P-521"), "Ed25519": root("CA", "Ed25519"),
		"constrained": root("constrained", "P-384", constrained), "path length": root("CA", "P-256", func(c *x509.Certificate) { c.MaxPathLen = 3 }),
		"no key usage": root("CA", "P-256", func(c *x509.Certificate) { c.KeyUsage = 0 }),
		"serial number in its authority key identifier": root("CA", "P-256", byIssuerAndSerial),
		"expired": root("CA", "P-256", func(c *x509.Certificate) { c.NotAfter = now.AddDate(0, 0, -1) }),
	}
	for _, kind := range withMLDSA() {
		roots[kind] = root("CA", kind)
	}
	for name, root := range roots {
		t.Run(name, func(t *testing.T) {
			present := must(root.load())
			renewed := must(present.Renew(day*30, now))
			before, after := present.Certificate(), renewed.Certificate()
			expect.True(t, bytes.Equal(after.RawSubject, before.RawSubject) && bytes.Equal(after.RawIssuer, before.RawIssuer), "subject %s", after.Subject)
			expect.Equal(t, "key", renewed.KeyID(), present.KeyID())
			expect.Equal(t, "subject key identifier", after.SubjectKeyId, before.SubjectKeyId)
			expect.Equal(t, "begin", after.NotBefore, now.Add(-time.Hour))
			expect.Equal(t, "end", after.NotAfter, now.AddDate(0, 0, 30))
			expect.True(t, after.SerialNumber.Cmp(before.SerialNumber) != 0, "the serial number is %v", after.SerialNumber)
			expect.Equal(t, "extensions", after.Extensions, slices.DeleteFunc(slices.Clone(before.Extensions), func(one pkix.Extension) bool {
				return one.Id.String() == "2.5.29.35"
			}))
			expect.NoError(t, renewed.Usable(now.AddDate(0, 0, 29)))
			if present.Usable(now) != nil {
				return
			}
			for issuer, root := range map[*ca.Authority]*x509.Certificate{present: after, renewed: before, must(ca.Load(renewed.CertificatePEM(), pkcs8(root.key), nil)): after} {
				expect.NoError(t, verify(parse(t, issue(issuer).PEM)[0], []*x509.Certificate{root}, nil))
			}
			expect.Equal(t, "end of a long certificate", parse(t, must(renewed.Issue(profile(ca.ProfileConfig{Lifetime: 90 * day}), request(), now)).PEM)[0].NotAfter, after.NotAfter)
			again := must(renewed.Renew(0, now)).Certificate()
			expect.Equal(t, "end by default", again.NotAfter, now.Add(ca.DefaultAuthorityLifetime))
			opensslAccepts(t, before, again, parse(t, issue(present).PEM)[0], parse(t, issue(renewed).PEM)[0])
		})
	}
}

// opensslAccepts checks that OpenSSL, if there is one, accepts each leaf with each root alone.
func opensslAccepts(t *testing.T, before, after *x509.Certificate, leaves ...*x509.Certificate) {
	t.Helper()
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		return
	}
	known, err := exec.CommandContext(t.Context(), openssl, "list", "-public-key-algorithms").Output()
	expect.NoError(t, err)
	if before.PublicKeyAlgorithm == x509.MLDSA && !bytes.Contains(known, []byte("ML-DSA")) { // before version 3.5
		return
	}
	write := func(name string, cert *x509.Certificate) string {
		file := filepath.Join(t.TempDir(), name)
		expect.NoError(t, os.WriteFile(file, block("CERTIFICATE", cert.Raw), 0o600))
		return file
	}
	for _, root := range []*x509.Certificate{before, after} {
		for _, leaf := range leaves {
			out, err := exec.CommandContext(t.Context(), openssl, "verify", "-attime", fmt.Sprint(now.Unix()), "-CAfile", write("root", root), write("leaf", leaf)).CombinedOutput()
			expect.True(t, err == nil, "openssl: %v: %s", err, out)
		}
	}
}

// TestRenewRefuses checks what Renew refuses.
func TestRenewRefuses(t *testing.T) {
	above := root("above", "P-384")
	between := above.below("between", "P-256")
	for name, test := range map[string]struct {
		authority *ca.Authority
		lifetime  time.Duration
		want      string
	}{
		"an intermediate":                 {must(between.load()), day, `only "CN=above" can renew the certificate "CN=between", which it has signed`},
		"an intermediate with its issuer": {must(between.load(above.pem)), day, `only "CN=above" can renew`},
		"an end that is not later":        {authority("P-256"), old.Sub(now), "a certificate that is made now would end at " + old.Format(time.RFC3339) + ", and the present one ends at " + old.Format(time.RFC3339)},
	} {
		got, err := test.authority.Renew(test.lifetime, now)
		expect.True(t, err != nil && strings.Contains(err.Error(), test.want), "%s: got %v, error %v, want %s", name, got, err, test.want)
	}
	must(authority("P-256").Renew(old.Sub(now)+time.Second, now))
}

// TestNewKeyLike renews keys of each kind: ML-DSA stays, and others become P-256.
func TestNewKeyLike(t *testing.T) {
	for _, kind := range withMLDSA("RSA-1024", "RSA-2048", "P-224", "P-256", "P-384", "Ed25519") {
		present, want := keys[kind](), keys["P-256"]()
		if strings.HasPrefix(kind, "ML-DSA") {
			want = present
		}
		key, keyPEM, err := ca.NewKeyLike(present.Public())
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		block, _ := pem.Decode(keyPEM)
		read := must(x509.ParsePKCS8PrivateKey(block.Bytes)).(crypto.Signer)
		expect.True(t, key.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(read.Public()), "%s: the PEM holds another key", kind)
		expect.True(t, !bytes.Equal(pkcs8(present), keyPEM), "%s: it is the present key", kind)
		expect.Equal(t, kind, len(must(x509.MarshalPKIXPublicKey(key.Public()))), len(must(x509.MarshalPKIXPublicKey(want.Public()))))
	}
}
