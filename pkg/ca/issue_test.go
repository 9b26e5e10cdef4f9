package ca_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// kubeletRequest returns the request of a kubelet for a client certificate.
func kubeletRequest(kind string) ca.Request {
	return ca.Request{
		PublicKey: keys[kind]().Public(), Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// TestIssueWithEveryKindOfKey checks that each kind of CA issues for each kind of key.
func TestIssueWithEveryKindOfKey(t *testing.T) {
	t.Parallel()
	kinds := []string{"RSA-2048", "P-256", "P-384", "P-521", "Ed25519"}
	for _, caKind := range kinds {
		signing := authority(caKind)
		roots := x509.NewCertPool()
		roots.AddCert(signing.Certificate())
		for _, leafKind := range kinds {
			req := kubeletRequest(leafKind)
			issued := must(signing.Issue(profile(ca.ProfileConfig{Lifetime: time.Hour}), req, now))
			cert := parse(t, issued.PEM)[0]
			if err := verify(cert, roots, nil); err != nil || cert.SerialNumber.Cmp(issued.Serial) != 0 {
				t.Errorf("%s by %s: serial %s, certificate has %s, error %v", leafKind, caKind, issued.Serial, cert.SerialNumber, err)
			}
			checkInvariants(t, cert, req.PublicKey, signing.NotAfter())
		}
	}
}

// TestIssueTemplate checks a certificate that has everything, so that no unexpected content gets in.
func TestIssueTemplate(t *testing.T) {
	t.Parallel()
	signing := authority("P-256")
	req := ca.Request{
		PublicKey:      keys["leaf"]().Public(),
		Subject:        pkix.Name{CommonName: "leaf", Organization: []string{"a", "b"}, SerialNumber: "7"},
		DNSNames:       []string{"a.example.com"},
		EmailAddresses: []string{"a@example.com"},
		IPAddresses:    []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")},
		URIs:           []*url.URL{must(url.Parse("spiffe://example.com/a"))},
		KeyUsage:       x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:    []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		Lifetime:       time.Hour,
	}
	cert := parse(t, must(signing.Issue(profile(ca.ProfileConfig{}), req, now)).PEM)[0]
	checkSaid(t, req, cert)
	checkInvariants(t, cert, req.PublicKey, now.Add(time.Hour))
	got := []any{cert.Version, cert.SignatureAlgorithm, cert.Issuer.String(), cert.NotAfter, cert.MaxPathLen, cert.AuthorityKeyId}
	want := []any{3, x509.ECDSAWithSHA256, "CN=CA", now.Add(time.Hour), -1, signing.Certificate().SubjectKeyId}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("certificate (-want +got):\n%s", diff)
	}
	// key usage, extended key usage, basic constraints, authority key identifier, subjectAltName
	wantCritical := map[string]bool{"2.5.29.15": true, "2.5.29.37": false, "2.5.29.19": true, "2.5.29.35": false, "2.5.29.17": false}
	if diff := cmp.Diff(wantCritical, critical(cert)); diff != "" {
		t.Errorf("extensions and whether they are critical (-want +got):\n%s", diff)
	}
	req.Subject = pkix.Name{} // then subjectAltName is critical (RFC 5280 section 4.2.1.6)
	cert = parse(t, must(signing.Issue(profile(ca.ProfileConfig{}), req, now)).PEM)[0]
	if wantCritical["2.5.29.17"] = true; !cmp.Equal(wantCritical, critical(cert)) {
		t.Errorf("without a subject: %v", critical(cert))
	}
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
	t.Parallel()
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
		want := []any{start, end, start, end, end, test.cut}
		told := signing.NotAfterOf(profile(test.config), req, now)
		got := []any{cert.NotBefore, cert.NotAfter, issued.NotBefore, issued.NotAfter, told, issued.Cut}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: start and end of the certificate, as told, and cut (-want +got):\n%s", name, diff)
		}
	}
}

// TestIssueOnlyWhileTheAuthorityIsValid checks the bounds of the validity, and the error beyond them.
func TestIssueOnlyWhileTheAuthorityIsValid(t *testing.T) {
	t.Parallel()
	signing := authority("P-256", func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now, now.Add(time.Hour) })
	for at, want := range map[time.Duration]string{
		0:             "",
		time.Hour - 1: "",
		-1:            `the signing certificate "CN=CA" is not valid before 2026-03-01T12:00:00Z`,
		time.Hour:     `the signing certificate has expired: "CN=CA" expired at 2026-03-01T13:00:00Z`,
	} {
		issued, err := signing.Issue(profile(ca.ProfileConfig{}), request(), now.Add(at))
		usable := signing.Usable(now.Add(at))
		if errorText(err) != want || errorText(usable) != want || (issued == nil) != (want != "") {
			t.Errorf("after %s: issued %v, error %v, usable: %v", at, issued, err, usable)
		}
		if errors.Is(err, ca.ErrExpired) != (at == time.Hour) || errors.Is(usable, ca.ErrExpired) != (at == time.Hour) {
			t.Errorf("after %s: errors.Is(err, ErrExpired) is wrong for %v", at, err)
		}
	}
}

// TestIssueMakesRandomSerials wants distinct serial numbers of 120 to 128 bits. Each of the lowest 64 bits must be set in
// one and not in another: with random bits that fails once in 2^93 runs.
func TestIssueMakesRandomSerials(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	for algorithm, size := range map[ca.Algorithm]int{ // bytes of the public key in the certificate
		"": 91, "ECDSAP256": 91, "ECDSAP384": 120, "RSA3072": 422, "RSA4096": 550, "ED25519": 44,
	} {
		t.Run(string(algorithm), func(t *testing.T) {
			t.Parallel()
			made, keyPEM, err := ca.New(ca.NewOptions{CommonName: "test CA", Algorithm: algorithm, Lifetime: day}, now)
			if err != nil {
				t.Fatal(err)
			}
			loaded := must(ca.Load(made.CertificatePEM(), keyPEM, made.CertificatePEM()))
			cert, leaf := loaded.Certificate(), parse(t, issue(loaded).PEM)[0]
			got := []any{
				cert.Version, len(cert.RawSubjectPublicKeyInfo), cert.Subject.String(), cert.NotBefore, loaded.NotAfter(), cert.IsCA, cert.MaxPathLen,
				cert.KeyUsage, critical(cert), leaf.AuthorityKeyId,
			}
			want := []any{
				3, size, "CN=test CA", now.Add(-time.Hour), now.Add(day), true, 0,
				x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
				map[string]bool{"2.5.29.14": false, "2.5.29.15": true, "2.5.29.19": true}, cert.SubjectKeyId,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("certificate (-want +got):\n%s", diff)
			}
			if octets := len(cert.SerialNumber.Bytes()); octets > 20 || cert.SerialNumber.Sign() <= 0 {
				t.Errorf("serial number %s of %d octets", cert.SerialNumber, octets)
			}
		})
	}
}

// TestNewRefuses checks the bounds of the name, and the algorithm.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	longest, longer := strings.Repeat("ü", 64), strings.Repeat("a", 65)
	for want, options := range map[string]ca.NewOptions{
		"": {CommonName: longest, Lifetime: ca.DefaultAuthorityLifetime},
		`the common name "` + longer + `" has 65 letters: want 1 to 64`: {CommonName: longer, Lifetime: day},
		`the common name "" has 0 letters: want 1 to 64`:                {Lifetime: day},
		`make CA key: unknown algorithm "DSA"`:                          {CommonName: "a", Algorithm: "DSA", Lifetime: day},
	} {
		made, _, err := ca.New(options, now)
		if errorText(err) != want || err == nil && made.NotAfter().Sub(now) != 3650*day {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
