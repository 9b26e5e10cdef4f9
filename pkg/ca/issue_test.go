package ca_test

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

var keyKinds = []string{"RSA-2048", "P-256", "P-384", "P-521", "Ed25519"}

func TestIssueWithEveryKindOfKey(t *testing.T) {
	t.Parallel()
	for _, caKind := range keyKinds {
		for _, leafKind := range keyKinds {
			t.Run(leafKind+" by "+caKind, func(t *testing.T) {
				t.Parallel()
				authority := authority(t, caKind)
				public := keys[leafKind]().Public()
				issued, err := authority.Issue(profile(t, ca.ProfileConfig{Lifetime: time.Hour}), ca.Request{
					PublicKey: public, Subject: pkix.Name{CommonName: "leaf"},
					KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
				}, now)
				if err != nil {
					t.Fatal(err)
				}
				cert := parse(t, issued.PEM)
				roots := x509.NewCertPool()
				roots.AppendCertsFromPEM(authority.CertificatePEM())
				options := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
				if _, err := cert.Verify(options); err != nil {
					t.Error(err)
				}
				if cert.IsCA || !cert.BasicConstraintsValid {
					t.Errorf("CA %t, basic constraints %t", cert.IsCA, cert.BasicConstraintsValid)
				}
				if !cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(public) {
					t.Error("another public key")
				}
				if cert.SerialNumber.Cmp(issued.Serial) != 0 || issued.Serial.Sign() <= 0 {
					t.Errorf("serial %s, certificate has %s", issued.Serial, cert.SerialNumber)
				}
			})
		}
	}
}

// TestIssueTemplate compares the whole certificate, so that no unexpected content gets in.
func TestIssueTemplate(t *testing.T) {
	t.Parallel()
	uri := must(url.Parse("spiffe://example.com/a"))
	signing := authority(t, "P-256")
	issued, err := signing.Issue(profile(t, ca.ProfileConfig{}), ca.Request{
		PublicKey:      keys["leaf"]().Public(),
		Subject:        pkix.Name{CommonName: "leaf", Organization: []string{"a", "b"}, SerialNumber: "7"},
		DNSNames:       []string{"a.example.com"},
		EmailAddresses: []string{"a@example.com"},
		IPAddresses:    []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")},
		URIs:           []*url.URL{uri},
		KeyUsage:       x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:    []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		Lifetime:       time.Hour,
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	got := parse(t, issued.PEM)
	want := x509.Certificate{
		Version:               3,
		SignatureAlgorithm:    x509.ECDSAWithSHA256,
		PublicKeyAlgorithm:    x509.ECDSA,
		PublicKey:             keys["leaf"]().Public(),
		SerialNumber:          issued.Serial,
		Issuer:                pkix.Name{CommonName: "CA"},
		Subject:               pkix.Name{CommonName: "leaf", Organization: []string{"a", "b"}, SerialNumber: "7"},
		NotBefore:             now.Add(-5 * time.Minute),
		NotAfter:              now.Add(time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		MaxPathLen:            -1,
		AuthorityKeyId:        parse(t, signing.CertificatePEM()).SubjectKeyId,
		DNSNames:              []string{"a.example.com"},
		EmailAddresses:        []string{"a@example.com"},
		IPAddresses:           []net.IP{net.IPv4(10, 0, 0, 1).To4(), net.ParseIP("fd00::1")},
		URIs:                  []*url.URL{uri},
	}
	same := cmp.Options{
		cmpopts.IgnoreFields(x509.Certificate{}, "Raw", "RawTBSCertificate", "RawSubjectPublicKeyInfo", "RawSubject", "RawIssuer", "Signature", "Extensions"),
		cmpopts.IgnoreFields(pkix.Name{}, "Names"),
		cmp.Comparer(func(a, b *big.Int) bool { return a.Cmp(b) == 0 }),
		cmp.FilterPath(func(path cmp.Path) bool { return path.Last().String() == ".PublicKey" }, cmp.Comparer(func(a, b any) bool {
			return a.(interface{ Equal(crypto.PublicKey) bool }).Equal(b)
		})),
	}
	if diff := cmp.Diff(want, *got, same); diff != "" {
		t.Errorf("certificate (-want +got):\n%s", diff)
	}
	extensions := map[string]bool{}
	for _, extension := range got.Extensions {
		extensions[extension.Id.String()] = extension.Critical
	}
	// key usage, extended key usage, basic constraints, authority key identifier, subjectAltName
	wantCritical := map[string]bool{"2.5.29.15": true, "2.5.29.37": false, "2.5.29.19": true, "2.5.29.35": false, "2.5.29.17": false}
	if diff := cmp.Diff(wantCritical, extensions); diff != "" {
		t.Errorf("extensions and whether they are critical (-want +got):\n%s", diff)
	}
}

func TestIssueValidity(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	oneDay := ca.ProfileConfig{Lifetime: day}
	for name, test := range map[string]struct {
		config ca.ProfileConfig
		wish   time.Duration
		start  time.Time // of the CA
		end    time.Time // of the CA
		want   time.Duration
		cut    time.Duration
	}{
		"not set":                {config: oneDay, want: day},
		"the default itself":     {config: oneDay, wish: day, want: day},
		"too long":               {config: oneDay, wish: 2 * day, want: day},
		"20 hours":               {config: oneDay, wish: 20 * time.Hour, want: 20 * time.Hour},
		"8 hours":                {config: oneDay, wish: 8 * time.Hour, want: 8 * time.Hour},
		"a second under 8 hours": {config: oneDay, wish: 8*time.Hour - time.Second, want: 8*time.Hour - time.Second + 5*time.Minute},
		"2 hours":                {config: oneDay, wish: 2 * time.Hour, want: 2*time.Hour + 5*time.Minute},
		"30 minutes":             {config: oneDay, wish: 30 * time.Minute, want: 35 * time.Minute},
		"10 minutes":             {config: oneDay, wish: 10 * time.Minute, want: 15 * time.Minute},
		"under the minimum":      {config: oneDay, wish: time.Minute, want: 15 * time.Minute},
		"negative":               {config: oneDay, wish: -time.Minute, want: 15 * time.Minute},
		"nothing configured":     {want: 365 * day},

		"the maximum precedes the minimum":    {config: ca.ProfileConfig{Lifetime: 5 * time.Minute}, wish: time.Minute, want: 10 * time.Minute},
		"a short default is not raised":       {config: ca.ProfileConfig{Lifetime: 5 * time.Minute}, want: 10 * time.Minute},
		"a maximum over the default, set":     {config: ca.ProfileConfig{Lifetime: day, MaxLifetime: 3 * day}, wish: 2 * day, want: 2 * day},
		"a maximum over the default, not set": {config: ca.ProfileConfig{Lifetime: day, MaxLifetime: 3 * day}, want: day},
		"a configured minimum":                {config: ca.ProfileConfig{Lifetime: day, MinLifetime: time.Hour}, wish: time.Minute, want: 65 * time.Minute},
		"the CA ends a second later":          {config: oneDay, end: now.Add(day - 5*time.Minute + time.Second), want: day},
		"the CA ends with it":                 {config: oneDay, end: now.Add(day - 5*time.Minute), want: day},
		"the CA ends a second before":         {config: oneDay, end: now.Add(day - 5*time.Minute - time.Second), want: day - time.Second, cut: time.Second},
		"the CA ends in an hour":              {config: oneDay, end: now.Add(time.Hour), want: 65 * time.Minute, cut: 23*time.Hour - 5*time.Minute},
		"the CA began less than 5 min ago":    {config: oneDay, start: now.Add(-time.Minute), wish: time.Hour, want: 65 * time.Minute},
		"the CA begins now and ends shortly":  {config: oneDay, start: now, end: now.Add(time.Second), want: 5*time.Minute + time.Second, cut: day - 5*time.Minute - time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			signing := authority(t, "P-256", func(c *x509.Certificate) {
				c.NotAfter = now.AddDate(10, 0, 0)
				if !test.end.IsZero() {
					c.NotAfter = test.end
				}
				if !test.start.IsZero() {
					c.NotBefore = test.start
				}
			})
			issued, err := signing.Issue(profile(t, test.config), ca.Request{PublicKey: keys["leaf"]().Public(), Lifetime: test.wish}, now)
			if err != nil {
				t.Fatal(err)
			}
			cert := parse(t, issued.PEM)
			start := now.Add(-5 * time.Minute)
			want := []any{start, start.Add(test.want), start, start.Add(test.want), test.cut}
			got := []any{cert.NotBefore, cert.NotAfter, issued.NotBefore, issued.NotAfter, issued.Cut}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("start and end of the certificate, as told, and cut (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIssueOnlyWhileTheAuthorityIsValid(t *testing.T) {
	t.Parallel()
	signing := authority(t, "P-256")
	for name, test := range map[string]struct {
		at  time.Time
		err string
	}{
		"expired":       {at: now.AddDate(0, 0, 5), err: `the signing certificate has expired: "CN=CA" expired at 2026-03-06T12:00:00Z`},
		"not yet valid": {at: now.AddDate(0, 0, -6), err: `the signing certificate "CN=CA" is not valid before 2026-02-24T12:00:00Z`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			issued, err := signing.Issue(profile(t, ca.ProfileConfig{}), ca.Request{PublicKey: keys["leaf"]().Public()}, test.at)
			if issued != nil || errorText(err) != test.err {
				t.Errorf("issued %v, error %v", issued, err)
			}
			if errors.Is(err, ca.ErrExpired) != (name == "expired") {
				t.Errorf("errors.Is(err, ErrExpired) is wrong for %v", err)
			}
		})
	}
}

// TestIssueMakesRandomSerials wants distinct serial numbers of 120 to 128 bits. Each of the lowest 64 bits must be set in one and not in
// another: with random bits that fails once in 2^93 runs.
func TestIssueMakesRandomSerials(t *testing.T) {
	t.Parallel()
	signing, seen, bits := authority(t, "P-256"), map[string]bool{}, 0
	var ones, zeros uint64
	for range 100 {
		issued, err := signing.Issue(profile(t, ca.ProfileConfig{}), ca.Request{PublicKey: keys["leaf"]().Public()}, now)
		if err != nil {
			t.Fatal(err)
		}
		if issued.Serial.Sign() <= 0 || issued.Serial.BitLen() > 128 || seen[issued.Serial.String()] {
			t.Fatalf("serial %s", issued.Serial)
		}
		seen[issued.Serial.String()] = true
		bits = max(bits, issued.Serial.BitLen())
		low := binary.BigEndian.Uint64(issued.Serial.FillBytes(make([]byte, 16))[8:])
		ones, zeros = ones|low, zeros|^low
	}
	if ones&zeros != math.MaxUint64 {
		t.Errorf("the bits %x of 100 serials never change", ^(ones & zeros))
	}
	if bits < 120 {
		t.Errorf("100 serials have %d bits at the most", bits)
	}
}

func TestIssueReportsWhatItCannotEncode(t *testing.T) {
	t.Parallel()
	_, err := authority(t, "P-256").Issue(profile(t, ca.ProfileConfig{}), ca.Request{PublicKey: "no key"}, now)
	if want := "sign certificate: x509: unsupported public key type: string"; errorText(err) != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
