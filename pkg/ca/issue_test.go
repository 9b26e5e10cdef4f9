package ca_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const day = 24 * time.Hour

// now is the time of every test. Certificates hold whole seconds.
var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// keys are made once, because RSA keys take long. The others are computed from their names, so that the inputs of fuzz
// targets mean the same in each run. They protect nothing.
var keys = map[string]func() crypto.Signer{
	"RSA-2048": sync.OnceValue(func() crypto.Signer { return must(rsa.GenerateKey(rand.Reader, 2048)) }),
	"RSA-3072": sync.OnceValue(func() crypto.Signer { return must(rsa.GenerateKey(rand.Reader, 3072)) }),
	"RSA-1024": sync.OnceValue(func() crypto.Signer { return must(rsa.GenerateKey(rand.Reader, 1024)) }),
	"P-224":    func() crypto.Signer { return fixedKey("P-224", elliptic.P224()) },
	"P-256":    func() crypto.Signer { return fixedKey("P-256", elliptic.P256()) },
	"P-384":    func() crypto.Signer { return fixedKey("P-384", elliptic.P384()) },
	"P-521":    func() crypto.Signer { return fixedKey("P-521", elliptic.P521()) },
	"Ed25519":  func() crypto.Signer { return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize)) },
	"leaf":     func() crypto.Signer { return fixedKey("leaf", elliptic.P256()) },
	"third":    func() crypto.Signer { return fixedKey("third", elliptic.P256()) },
	// Without ML-DSA in the cryptographic module, these panic.
	"ML-DSA-44": func() crypto.Signer {
		return must(mldsa.NewPrivateKey(mldsa.MLDSA44(), make([]byte, mldsa.PrivateKeySize)))
	},
	"ML-DSA-65": func() crypto.Signer {
		return must(mldsa.NewPrivateKey(mldsa.MLDSA65(), make([]byte, mldsa.PrivateKeySize)))
	},
	"ML-DSA-87": func() crypto.Signer {
		return must(mldsa.NewPrivateKey(mldsa.MLDSA87(), make([]byte, mldsa.PrivateKeySize)))
	},
}

// noMLDSA reports whether this is a build with the FIPS 140-3 module v1.0.0, which has no ML-DSA. The others have it.
var noMLDSA = fips140.Version() == "v1.0.0"

// unavailable is the error of crypto/mldsa with that module.
const unavailable = "mldsa: unavailable in FIPS 140-3 Go Cryptographic Module v1.0.0"

// withMLDSA returns kinds and, if the cryptographic module has them, those of ML-DSA.
func withMLDSA(kinds ...string) []string {
	if noMLDSA {
		return kinds
	}
	return append(kinds, "ML-DSA-44", "ML-DSA-65", "ML-DSA-87")
}

func fixedKey(name string, curve elliptic.Curve) *ecdsa.PrivateKey {
	number := make([]byte, (curve.Params().BitSize+7)/8)
	seed := sha512.Sum512([]byte("csr-controller-manager " + name))
	copy(number[max(0, len(number)-len(seed)):], seed[:])
	return must(ecdsa.ParseRawPrivateKey(curve, number))
}

// repeatable signs without random bytes, as RFC 6979 does, so that a certificate is the same in each run.
type repeatable struct{ crypto.Signer }

func (r repeatable) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return r.Signer.Sign(nil, digest, opts)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func pkcs8(key crypto.Signer) []byte {
	return block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key)))
}

func profile(config ca.ProfileConfig) ca.Profile { return must(ca.NewProfile(config)) }

// link is a CA in a chain.
type link struct {
	template *x509.Certificate
	key      crypto.Signer
	pem      []byte
}

// below makes a CA called name whose issuer is l, valid for ten days around now unless change says otherwise. If l is nil, it
// makes a root.
func (l *link) below(name, kind string, change ...func(*x509.Certificate)) *link {
	made := &link{key: keys[kind](), template: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.AddDate(0, 0, -5), NotAfter: now.AddDate(0, 0, 5),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}}
	for _, each := range change {
		each(made.template)
	}
	if l == nil {
		l = made
	}
	der := must(x509.CreateCertificate(rand.Reader, made.template, l.template, made.key.Public(), repeatable{l.key}))
	made.pem = block("CERTIFICATE", der)
	return made
}

func root(name, kind string, change ...func(*x509.Certificate)) *link {
	return (*link)(nil).below(name, kind, change...)
}

// load returns the CA of l. more are certificates beside its own, and ca.crt.
func (l *link) load(more ...[]byte) (*ca.Authority, error) {
	more = append(more, nil, nil)
	return ca.Load(append(bytes.Clone(l.pem), more[0]...), pkcs8(l.key), more[1])
}

// authority returns a root with that kind of key.
func authority(kind string, change ...func(*x509.Certificate)) *ca.Authority {
	return must(root("CA", kind, change...).load())
}

// request returns the smallest request.
func request() ca.Request { return ca.Request{PublicKey: keys["leaf"]().Public()} }

// issue returns what by issues for the smallest request.
func issue(by *ca.Authority) *ca.Issued {
	return must(by.Issue(profile(ca.ProfileConfig{Lifetime: day}), request(), now))
}

// parse returns the certificates in data, which must hold nothing but CERTIFICATE blocks without headers.
func parse(t testing.TB, data []byte) []*x509.Certificate {
	t.Helper()
	certs := must(ca.ParseCertificates(data))
	var again []byte
	for _, cert := range certs {
		again = append(again, block("CERTIFICATE", cert.Raw)...)
	}
	if !bytes.Equal(again, data) || len(certs) == 0 {
		t.Fatalf("more or less than blocks of type CERTIFICATE: %q", data)
	}
	return certs
}

// verify verifies a leaf as a client or a server would.
func verify(leaf *x509.Certificate, roots, between []*x509.Certificate) error {
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, cert := range roots {
		options.Roots.AddCert(cert)
	}
	for _, cert := range between {
		options.Intermediates.AddCert(cert)
	}
	_, err := leaf.Verify(options)
	return err
}

// fullRequest returns a request with content in each field.
func fullRequest() ca.Request {
	return ca.Request{
		PublicKey: keys["leaf"]().Public(),
		Subject: pkix.Name{
			CommonName: "system:node:a", Organization: []string{"system:nodes", "another"}, OrganizationalUnit: []string{"unit"}, Country: []string{"CH"},
			Locality: []string{"Z"}, Province: []string{"ZH"}, StreetAddress: []string{"1"}, PostalCode: []string{"8000"}, SerialNumber: "7",
		},
		DNSNames: []string{"a.example.com", "b.example.com"}, EmailAddresses: []string{"a@example.com"},
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")}, URIs: []*url.URL{must(url.Parse("spiffe://example.com/a%20b"))},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageDecipherOnly, Lifetime: time.Hour,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// TestIssueWithEveryKindOfKey checks that each kind of CA issues for each kind of key.
func TestIssueWithEveryKindOfKey(t *testing.T) {
	kinds := withMLDSA("RSA-2048", "P-256", "P-384", "P-521", "Ed25519")
	for _, caKind := range kinds {
		signing := authority(caKind)
		for _, leafKind := range kinds {
			req := fullRequest()
			req.PublicKey = keys[leafKind]().Public()
			issued := must(signing.Issue(profile(ca.ProfileConfig{}), req, now))
			cert := parse(t, issued.PEM)[0]
			if err := verify(cert, []*x509.Certificate{signing.Certificate()}, nil); err != nil || cert.SerialNumber.Cmp(issued.Serial) != 0 {
				t.Errorf("%s by %s: serial %s, certificate has %s, error %v", leafKind, caKind, issued.Serial, cert.SerialNumber, err)
			}
			checkInvariants(t, cert, req.PublicKey, signing.NotAfter(now))
			if algorithm := cert.SignatureAlgorithm.String(); strings.HasPrefix(caKind, "ML-") {
				expect.Equal(t, leafKind+": signature algorithm", algorithm, caKind)
			}
		}
	}
}

// TestIssueTemplate checks a certificate that has everything, so that no unexpected content gets in.
func TestIssueTemplate(t *testing.T) {
	signing := authority("P-256")
	req := fullRequest()
	cert := parse(t, must(signing.Issue(profile(ca.ProfileConfig{}), req, now)).PEM)[0]
	checkSaid(t, req, cert)
	checkInvariants(t, cert, req.PublicKey, now.Add(time.Hour))
	got := []any{cert.Version, cert.SignatureAlgorithm, cert.Issuer.String(), cert.NotAfter, cert.MaxPathLen, cert.AuthorityKeyId}
	expect.Equal(t, "certificate", got, []any{3, x509.ECDSAWithSHA256, "CN=CA", now.Add(time.Hour), -1, signing.Certificate().SubjectKeyId})
	// key usage, extended key usage, basic constraints, authority key identifier, subjectAltName
	wantCritical := map[string]bool{"2.5.29.15": true, "2.5.29.37": false, "2.5.29.19": true, "2.5.29.35": false, "2.5.29.17": false}
	expect.Equal(t, "extensions and whether they are critical", critical(cert), wantCritical)
	req.Subject = pkix.Name{} // then subjectAltName is critical (RFC 5280 section 4.2.1.6)
	cert = parse(t, must(signing.Issue(profile(ca.ProfileConfig{}), req, now)).PEM)[0]
	wantCritical["2.5.29.17"] = true
	expect.Equal(t, "without a subject", critical(cert), wantCritical)
}

// critical returns the extensions of cert, and whether each is critical.
func critical(cert *x509.Certificate) map[string]bool {
	found := map[string]bool{}
	for _, extension := range cert.Extensions {
		found[extension.Id.String()] = extension.Critical
	}
	return found
}

// TestIssueValidity checks the validity by lifetimes of the profile, of the request and of the CA.
func TestIssueValidity(t *testing.T) {
	const minute, second = time.Minute, time.Second
	oneDay, short := ca.ProfileConfig{Lifetime: day}, ca.ProfileConfig{Lifetime: 5 * minute}
	longer := ca.ProfileConfig{Lifetime: day, MaxLifetime: 3 * day}
	const years, before = 3650 * day, -5 * day // the usual CA
	for name, test := range map[string]struct {
		config     ca.ProfileConfig
		wish       time.Duration
		start, end time.Duration // of the CA, from now
		want, cut  time.Duration
	}{
		"not set":            {oneDay, 0, before, years, day, 0},
		"8 hours":            {oneDay, 8 * time.Hour, before, years, 8 * time.Hour, 0},
		"30 minutes":         {oneDay, 30 * minute, before, years, 35 * minute, 0},
		"under the minimum":  {oneDay, minute, before, years, 15 * minute, 0},
		"nothing configured": {ca.ProfileConfig{}, 0, before, years, 365 * day, 0},

		"the maximum precedes the minimum":    {short, minute, before, years, 10 * minute, 0},
		"a short default is not raised":       {short, 0, before, years, 10 * minute, 0},
		"a maximum over the default, set":     {longer, 2 * day, before, years, 2 * day, 0},
		"a maximum over the default, not set": {longer, 0, before, years, day, 0},
		"a configured minimum":                {ca.ProfileConfig{Lifetime: day, MinLifetime: time.Hour}, minute, before, years, 65 * minute, 0},
		"the CA ends with it":                 {oneDay, 0, before, day - 5*minute, day, 0},
		"the CA ends a second before":         {oneDay, 0, before, day - 5*minute - second, day - second, second},
		"the CA begins now and ends shortly":  {oneDay, 0, 0, second, 5*minute + second, day - 5*minute - second},
	} {
		signing := authority("P-256", func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now.Add(test.start), now.Add(test.end) })
		req := request()
		req.Lifetime = test.wish
		issued := must(signing.Issue(profile(test.config), req, now))
		cert := parse(t, issued.PEM)[0]
		start := now.Add(-5 * minute)
		end := start.Add(test.want)
		want := []any{start, end, start, end, test.cut}
		got := []any{cert.NotBefore, cert.NotAfter, issued.NotBefore, issued.NotAfter, issued.Cut}
		expect.Equal(t, name+": start and end of the certificate, as told, and cut", got, want)
	}
}

// TestIssueOnlyWhileTheAuthorityIsValid checks the bounds of the validity, and the error beyond them.
func TestIssueOnlyWhileTheAuthorityIsValid(t *testing.T) {
	signing := authority("P-256", func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now, now.Add(time.Hour) })
	for at, want := range map[time.Duration]string{
		0:             "",
		time.Hour - 1: "",
		-1:            `the signing certificate "CN=CA" is not valid before 2026-03-01T12:00:00Z`,
		time.Hour:     `the signing certificate has expired: "CN=CA" expired at 2026-03-01T13:00:00Z`,
	} {
		issued, err := signing.Issue(profile(ca.ProfileConfig{}), request(), now.Add(at))
		usable := signing.Usable(now.Add(at))
		expect.Error(t, fmt.Sprint("issue after ", at), err, want)
		expect.Error(t, fmt.Sprint("usable after ", at), usable, want)
		expect.Equal(t, fmt.Sprint("no certificate after ", at), issued == nil, want != "")
		if errors.Is(err, ca.ErrExpired) != (at == time.Hour) || errors.Is(usable, ca.ErrExpired) != (at == time.Hour) {
			t.Errorf("after %s: errors.Is(err, ErrExpired) is wrong for %v", at, err)
		}
	}
}

// TestIssueMakesRandomSerials wants distinct serial numbers of 120 to 128 bits. Each of the lowest 64 bits must be set in
// one and not in another: with random bits that fails once in 2^93 runs.
func TestIssueMakesRandomSerials(t *testing.T) {
	signing, seen, bits := authority("P-256"), map[string]bool{}, 0
	var ones, zeros uint64
	for range 100 {
		serial := issue(signing).Serial
		if serial.Sign() <= 0 || serial.BitLen() > 128 || seen[serial.String()] {
			t.Fatalf("serial %s", serial)
		}
		seen[serial.String()] = true
		bits = max(bits, serial.BitLen())
		low := binary.BigEndian.Uint64(serial.FillBytes(make([]byte, 16))[8:])
		ones, zeros = ones|low, zeros|^low
	}
	if ones&zeros != math.MaxUint64 || bits < 120 {
		t.Errorf("the bits %x of 100 serials never change, and they have %d bits at the most", ^(ones & zeros), bits)
	}
}

// TestNew compares a new CA, and the certificates that it issues, with RFC 5280.
func TestNew(t *testing.T) {
	for algorithm, size := range map[ca.Algorithm]int{ // bytes of the public key in the certificate
		"": 91, "ECDSAP256": 91, "ECDSAP384": 120, "RSA3072": 422, "RSA4096": 550, "ED25519": 44,
		"MLDSA44": 1334, "MLDSA65": 1974, "MLDSA87": 2614,
	} {
		made, keyPEM, err := ca.New(ca.NewOptions{CommonName: "test CA", Algorithm: algorithm, Lifetime: day}, now)
		if noMLDSA && strings.HasPrefix(string(algorithm), "MLDSA") {
			expect.Error(t, string(algorithm), err, "make CA key: "+unavailable)
			expect.Error(t, string(algorithm)+": checked", algorithm.Check(), unavailable)
			continue
		}
		expect.NoError(t, algorithm.Check())
		loaded := must(ca.Load(must(made, err).CertificatePEM(), keyPEM, made.CertificatePEM()))
		cert, leaf := loaded.Certificate(), parse(t, issue(loaded).PEM)[0]
		got := []any{
			cert.Version, len(cert.RawSubjectPublicKeyInfo), cert.Subject.String(), cert.NotBefore, loaded.NotAfter(now), cert.IsCA, cert.MaxPathLen,
			cert.KeyUsage, critical(cert), leaf.AuthorityKeyId,
		}
		want := []any{
			3, size, "CN=test CA", now.Add(-time.Hour), now.Add(day), true, 0,
			x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
			map[string]bool{"2.5.29.14": false, "2.5.29.15": true, "2.5.29.19": true}, cert.SubjectKeyId,
		}
		expect.Equal(t, string(algorithm), got, want)
		if octets := len(cert.SerialNumber.Bytes()); octets > 20 || cert.SerialNumber.Sign() <= 0 {
			t.Errorf("%s: serial number %s of %d octets", algorithm, cert.SerialNumber, octets)
		}
	}
}

// TestNewRefuses checks the bounds of the name, and the algorithm.
func TestNewRefuses(t *testing.T) {
	longest, longer := strings.Repeat("ü", 64), strings.Repeat("a", 65)
	for want, options := range map[string]ca.NewOptions{
		"": {CommonName: longest, Lifetime: ca.DefaultAuthorityLifetime},
		`the common name "` + longer + `" has 65 letters: want 1 to 64`: {CommonName: longer, Lifetime: day},
		`the common name "" has 0 letters: want 1 to 64`:                {Lifetime: day},
		`make CA key: unknown algorithm "DSA"`:                          {CommonName: "a", Algorithm: "DSA", Lifetime: day},
	} {
		made, _, err := ca.New(options, now)
		if expect.Error(t, "new CA", err, want); err == nil {
			expect.Equal(t, "end", made.NotAfter(now), now.Add(3650*day))
		}
	}
}

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
	expect.Equal(t, "certificate, want the content of the request", got, asked)
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

// checkInvariants checks what holds for each certificate.
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

// TestLintFindsEachDifference changes one field after the request was judged, as a fault in the signer would.
func TestLintFindsEachDifference(t *testing.T) {
	signing, rules, req := root("CA", "P-256"), profile(ca.ProfileConfig{}), fullRequest()
	by := must(signing.load())
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
		issued := must(by.Issue(rules, req, now))
		issued.Serial = big.NewInt(7)
		template := &x509.Certificate{
			SerialNumber: issued.Serial, Subject: req.Subject, NotBefore: issued.NotBefore, NotAfter: issued.NotAfter,
			DNSNames: slices.Clone(req.DNSNames), EmailAddresses: req.EmailAddresses, IPAddresses: req.IPAddresses, URIs: req.URIs,
			KeyUsage: req.KeyUsage, ExtKeyUsage: slices.Clone(req.ExtKeyUsage), BasicConstraintsValid: true,
		}
		key := req.PublicKey
		if test.change == nil {
			key = keys["P-384"]().Public()
		} else {
			test.change(template)
		}
		der := must(x509.CreateCertificate(rand.Reader, template, by.Certificate(), key, signing.key))
		got := strings.Join(by.Lint(der, issued, rules, req), "; ")
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: found %q, want %q", name, got, test.want)
		}
	}
}

// TestIssueRefusesWhatDiffersFromTheRequest passes a subject to Issue that crypto/x509 does not write as it was read.
func TestIssueRefusesWhatDiffersFromTheRequest(t *testing.T) {
	signing, rules, req := authority("P-256"), profile(ca.ProfileConfig{}), fullRequest()
	must(signing.Issue(rules, req, now))
	req.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 10}, Value: "system:masters"}}
	issued, err := signing.Issue(rules, req, now)
	var lint *ca.LintError
	if issued != nil || !errors.As(err, &lint) || lint.Serial.Sign() <= 0 || !strings.Contains(err.Error(), "subject is") {
		t.Errorf("%+v, error %v", issued, err)
	}
}

// BenchmarkIssue measures Issue beside the signature that it makes, by the kind of the CA's key and with the bytes of the certificates. The
// key of each leaf is of P-256.
func BenchmarkIssue(b *testing.B) {
	for _, kind := range withMLDSA("P-256", "RSA-3072", "Ed25519") {
		top := root("root", kind)
		lower := must(top.below("lower", kind).load(top.pem))
		for name, signing := range map[string]*ca.Authority{kind + " root": must(top.load()), kind + " below a root": lower} {
			req, config := request(), profile(ca.ProfileConfig{Lifetime: day})
			req.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(day), ExtKeyUsage: req.ExtKeyUsage}
			b.Run(name+"/signature", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_ = must(x509.CreateCertificate(rand.Reader, template, signing.Certificate(), req.PublicKey, top.key))
				}
			})
			b.Run(name+"/issue", func(b *testing.B) {
				b.ReportAllocs()
				var issued *ca.Issued
				for b.Loop() {
					issued = must(signing.Issue(config, req, now))
				}
				b.ReportMetric(float64(len(signing.Certificate().Raw)), "CA-bytes")
				b.ReportMetric(float64(len(parse(b, issued.PEM)[0].Raw)), "leaf-bytes")
			})
		}
	}
}
