package ca_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

func TestLoadChoosesTheSigningCertificate(t *testing.T) {
	t.Parallel()
	key, other := keys["P-256"](), keys["P-384"]()
	good := selfSigned(t, caTemplate("good"), key)
	foreign := selfSigned(t, caTemplate("foreign"), other)
	with := func(change func(*x509.Certificate)) []byte {
		template := caTemplate("changed")
		change(template)
		return selfSigned(t, template, key)
	}
	longer := with(func(c *x509.Certificate) { c.NotAfter = c.NotAfter.AddDate(1, 0, 0) })
	expired := with(func(c *x509.Certificate) { c.NotAfter = now.AddDate(0, 0, -1) })
	notCA := with(func(c *x509.Certificate) { c.IsCA = false })
	noConstraints := with(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = false, false })
	noCertSign := with(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	noKeyUsage := with(func(c *x509.Certificate) { c.KeyUsage = 0 })
	unknownExtension := with(func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}}}
	})
	broken := block("CERTIFICATE", []byte("no DER"))

	for name, test := range map[string]struct {
		cert [][]byte
		want []byte
		err  string
	}{
		"one":                              {cert: [][]byte{good}, want: good},
		"another one before":               {cert: [][]byte{foreign, good}, want: good},
		"another one after":                {cert: [][]byte{good, foreign}, want: good},
		"in the middle of three":           {cert: [][]byte{foreign, good, notCA}, want: good},
		"twice the same":                   {cert: [][]byte{good, good}, want: good},
		"two that fit, later expiry first": {cert: [][]byte{longer, good}, want: longer},
		"two that fit, later expiry last":  {cert: [][]byte{good, longer}, want: longer},
		"a leaf for the same key":          {cert: [][]byte{notCA, good}, want: good},
		"expired is still named":           {cert: [][]byte{expired}, want: expired},
		"without key usage extension":      {cert: [][]byte{noKeyUsage}, want: noKeyUsage},
		"CRLF line ends":                   {cert: [][]byte{bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n"))}, want: good},
		"text before and garbage after":    {cert: [][]byte{[]byte("subject=CA\n"), good, []byte("\x00garbage")}, want: good},
		"blocks of other kinds":            {cert: [][]byte{block("X509 CRL", []byte("crl")), pkcs8(t, key), good}, want: good},

		"empty":             {err: "no PEM block of type CERTIFICATE found"},
		"only another kind": {cert: [][]byte{pkcs8(t, key)}, err: "no PEM block of type CERTIFICATE found"},
		"broken":            {cert: [][]byte{broken}, err: "parse certificate 1: x509: malformed certificate"},
		"good and broken":   {cert: [][]byte{good, broken}, err: "parse certificate 2: x509: malformed certificate"},
		"of another key":    {cert: [][]byte{foreign}, err: "the private key does not match any of the 1 certificate(s)"},
		"of other keys":     {cert: [][]byte{foreign, foreign}, err: "the private key does not match any of the 2 certificate(s)"},
		"no CA":             {cert: [][]byte{notCA}, err: `certificate "CN=changed" is not a CA (basic constraints CA:TRUE missing, RFC 5280 section 4.2.1.9)`},
		"no constraints":    {cert: [][]byte{noConstraints}, err: `certificate "CN=changed" is not a CA (basic constraints CA:TRUE missing, RFC 5280 section 4.2.1.9)`},
		"unknown extension": {cert: [][]byte{unknownExtension}, err: `certificate "CN=changed" has critical extensions that verifiers do not know: [1.2.3] (RFC 5280 section 4.2)`},
		"may not sign":      {cert: [][]byte{noCertSign}, err: `certificate "CN=changed" may not sign certificates (key usage keyCertSign missing, RFC 5280 section 4.2.1.3)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loaded, err := ca.Load(bytes.Join(test.cert, nil), pkcs8(t, key))
			if diff := cmp.Diff(test.err, errorText(err)); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
			if err == nil && !bytes.Equal(loaded.CertificatePEM(), test.want) {
				t.Errorf("chose %s, want %s", parse(t, loaded.CertificatePEM()).Subject, parse(t, test.want).Subject)
			}
		})
	}
}

func TestLoadReadsEveryKindOfKey(t *testing.T) {
	t.Parallel()
	pkcs1 := block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(keys["RSA-2048"]().(*rsa.PrivateKey)))
	sec1 := block("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(keys["P-256"]().(*ecdsa.PrivateKey))))
	parameters := block("EC PARAMETERS", []byte{6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7})
	//nolint:staticcheck // the format is obsolete, and people still have such files
	encrypted := pem.EncodeToMemory(must(x509.EncryptPEMBlock(rand.Reader, "RSA PRIVATE KEY", []byte("secret"), []byte("passphrase"), x509.PEMCipherAES256)))
	x25519 := block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(must(ecdh.X25519().GenerateKey(rand.Reader)))))
	const none = "no private key found: want a PEM block of type PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY"

	for name, test := range map[string]struct {
		kind string
		key  []byte
		err  string
	}{
		"RSA in PKCS#1":           {kind: "RSA-2048", key: pkcs1},
		"RSA in PKCS#8":           {kind: "RSA-2048", key: pkcs8(t, keys["RSA-2048"]())},
		"ECDSA in SEC 1":          {kind: "P-256", key: sec1},
		"ECDSA in PKCS#8":         {kind: "P-256", key: pkcs8(t, keys["P-256"]())},
		"P-384":                   {kind: "P-384", key: pkcs8(t, keys["P-384"]())},
		"P-521":                   {kind: "P-521", key: pkcs8(t, keys["P-521"]())},
		"Ed25519":                 {kind: "Ed25519", key: pkcs8(t, keys["Ed25519"]())},
		"after EC PARAMETERS":     {kind: "P-256", key: append(parameters, sec1...)},
		"after a certificate":     {kind: "P-256", key: append(selfSigned(t, caTemplate("CA"), keys["P-256"]()), sec1...)},
		"the first of two":        {kind: "P-256", key: append(bytes.Clone(sec1), pkcs1...)},
		"CRLF line ends":          {kind: "P-256", key: bytes.ReplaceAll(sec1, []byte("\n"), []byte("\r\n"))},
		"empty":                   {kind: "P-256", err: none},
		"only a certificate":      {kind: "P-256", key: selfSigned(t, caTemplate("CA"), keys["P-256"]()), err: none},
		"DER without PEM":         {kind: "P-256", key: must(x509.MarshalPKCS8PrivateKey(keys["P-256"]())), err: none},
		"encrypted PKCS#8":        {kind: "P-256", key: block("ENCRYPTED PRIVATE KEY", []byte("secret")), err: "the private key is encrypted: store it without a passphrase"},
		"encrypted PKCS#1":        {kind: "P-256", key: encrypted, err: "the private key is encrypted: store it without a passphrase"},
		"broken PKCS#8":           {kind: "P-256", key: block("PRIVATE KEY", []byte("secret")), err: "PEM block of type PRIVATE KEY holds no private key in PKCS#1, PKCS#8 or SEC 1"},
		"SEC 1 under PKCS#1":      {kind: "P-256", key: bytes.ReplaceAll(sec1, []byte("EC PRIVATE"), []byte("RSA PRIVATE"))},
		"broken SEC 1":            {kind: "P-256", key: block("EC PRIVATE KEY", []byte("secret")), err: "PEM block of type EC PRIVATE KEY holds no private key in PKCS#1, PKCS#8 or SEC 1"},
		"a key that cannot sign":  {kind: "P-256", key: x25519, err: "a private key of type *ecdh.PrivateKey cannot sign"},
		"another type, OpenSSH's": {kind: "P-256", key: block("OPENSSH PRIVATE KEY", []byte("secret")), err: "PEM block of type OPENSSH PRIVATE KEY holds no private key in PKCS#1, PKCS#8 or SEC 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ca.Load(selfSigned(t, caTemplate("CA"), keys[test.kind]()), test.key)
			if diff := cmp.Diff(test.err, errorText(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLoadNeverTellsTheKey checks that no error about a key file contains a part of its bytes, encoded or not.
func TestLoadNeverTellsTheKey(t *testing.T) {
	t.Parallel()
	der := must(x509.MarshalPKCS8PrivateKey(keys["P-256"]()))
	good := selfSigned(t, caTemplate("CA"), keys["P-384"]())
	for length := 1; length <= len(der); length++ {
		for _, kind := range []string{"PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY"} {
			_, err := ca.Load(good, block(kind, der[:length]))
			if err == nil {
				t.Fatalf("%d bytes under %s were accepted", length, kind)
			}
			for start := 0; start+6 <= length; start += 3 {
				run := der[start : start+6]
				if text := err.Error(); strings.Contains(text, string(run)) || strings.Contains(text, base64.StdEncoding.EncodeToString(run)) {
					t.Fatalf("error %q tells bytes %d to %d of the key", text, start, start+6)
				}
			}
		}
	}
}

func TestUsable(t *testing.T) {
	t.Parallel()
	authority := authority(t, "P-256", func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = now, now.Add(time.Hour)
	})
	for name, test := range map[string]struct {
		at      time.Time
		err     string
		expired bool
	}{
		"from its start":   {at: now},
		"until its end":    {at: now.Add(time.Hour - time.Nanosecond)},
		"before its start": {at: now.Add(-time.Nanosecond), err: `the signing certificate "CN=CA" is not valid before 2026-03-01T12:00:00Z`},
		"at its end":       {at: now.Add(time.Hour), err: `the signing certificate has expired: "CN=CA" expired at 2026-03-01T13:00:00Z`, expired: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := authority.Usable(test.at)
			if diff := cmp.Diff(test.err, errorText(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if got := errors.Is(err, ca.ErrExpired); got != test.expired {
				t.Errorf("errors.Is(err, ErrExpired) is %t", got)
			}
		})
	}
}

func TestKeyIDIsOfTheKey(t *testing.T) {
	t.Parallel()
	one := authority(t, "P-256").KeyID()
	renewed := authority(t, "P-256", func(c *x509.Certificate) { c.Subject.CommonName = "renewed" }).KeyID()
	other := authority(t, "P-384").KeyID()
	if one != renewed || one == other || len(one) != 16 {
		t.Errorf("key IDs %s, renewed %s, of another key %s", one, renewed, other)
	}
}

// TestSigned checks that the key decides whether a CA has signed, whatever the name.
func TestSigned(t *testing.T) {
	t.Parallel()
	one, other := authority(t, "P-256"), authority(t, "P-384")
	issued, err := one.Issue(profile(t, ca.ProfileConfig{Lifetime: time.Hour}), ca.Request{PublicKey: keys["leaf"]().Public()}, now)
	if err != nil {
		t.Fatal(err)
	}
	if cert := parse(t, issued.PEM); !one.Signed(cert) || other.Signed(cert) {
		t.Errorf("signed by its issuer: %t, by another of that name: %t", one.Signed(cert), other.Signed(cert))
	}
}

func TestParseCertificatesKeepsTheOrder(t *testing.T) {
	t.Parallel()
	first, second := selfSigned(t, caTemplate("first"), keys["P-256"]()), selfSigned(t, caTemplate("second"), keys["P-256"]())
	certs, err := ca.ParseCertificates(bytes.Join([][]byte{first, block("OTHER", nil), second}, nil))
	if err != nil || len(certs) != 2 || certs[0].Subject.CommonName != "first" || certs[1].Subject.CommonName != "second" {
		t.Errorf("got %d certificates, error %v", len(certs), err)
	}
}
