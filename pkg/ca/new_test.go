package ca_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// TestNew compares a new CA, and the certificates that it issues, with RFC 5280.
func TestNew(t *testing.T) {
	t.Parallel()
	for algorithm, kind := range map[ca.Algorithm]string{
		"": "ECDSA 256", "ECDSAP256": "ECDSA 256", "ECDSAP384": "ECDSA 384", "RSA3072": "RSA 3072", "RSA4096": "RSA 4096", "ED25519": "Ed25519",
	} {
		t.Run(kind+" "+string(algorithm), func(t *testing.T) {
			t.Parallel()
			made, keyPEM, err := ca.New(ca.NewOptions{CommonName: "test CA", Algorithm: algorithm, Lifetime: 24 * time.Hour}, now)
			if err != nil {
				t.Fatal(err)
			}
			loaded, err := ca.Load(made.CertificatePEM(), keyPEM, made.CertificatePEM())
			if err != nil {
				t.Fatalf("what was made does not load: %v", err)
			}
			cert := parse(t, loaded.CertificatePEM())
			got := []any{cert.Version, kindOf(cert.PublicKey), cert.Subject.String(), cert.NotBefore, loaded.NotAfter(), cert.IsCA, cert.MaxPathLen, cert.KeyUsage}
			want := []any{3, kind, "CN=test CA", now.Add(-time.Hour), now.Add(24 * time.Hour), true, 0, x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("certificate (-want +got):\n%s", diff)
			}
			critical := map[string]bool{}
			for _, extension := range cert.Extensions {
				critical[extension.Id.String()] = extension.Critical
			}
			if diff := cmp.Diff(map[string]bool{"2.5.29.14": false, "2.5.29.15": true, "2.5.29.19": true}, critical); diff != "" {
				t.Errorf("extensions and whether they are critical (-want +got):\n%s", diff)
			}
			if octets := len(cert.SerialNumber.Bytes()); octets > 20 || cert.SerialNumber.Sign() <= 0 {
				t.Errorf("serial number %s of %d octets", cert.SerialNumber, octets)
			}
			leaf := parse(t, issue(t, loaded).PEM)
			if len(cert.SubjectKeyId) == 0 || string(leaf.AuthorityKeyId) != string(cert.SubjectKeyId) {
				t.Errorf("subject key identifier %x, authority key identifier of what it issues %x", cert.SubjectKeyId, leaf.AuthorityKeyId)
			}
		})
	}
}

func kindOf(key any) string {
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		return fmt.Sprintf("ECDSA %d", key.Params().BitSize)
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", key.N.BitLen())
	case ed25519.PublicKey:
		return "Ed25519"
	}
	return fmt.Sprintf("%T", key)
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options ca.NewOptions
		err     string
	}{
		"64 letters":        {options: ca.NewOptions{CommonName: strings.Repeat("ü", 64), Lifetime: time.Hour}},
		"65 letters":        {options: ca.NewOptions{CommonName: strings.Repeat("a", 65), Lifetime: time.Hour}, err: `the common name "` + strings.Repeat("a", 65) + `" has 65 letters: want 1 to 64`},
		"no name":           {options: ca.NewOptions{Lifetime: time.Hour}, err: `the common name "" has 0 letters: want 1 to 64`},
		"unknown algorithm": {options: ca.NewOptions{CommonName: "a", Algorithm: "DSA", Lifetime: time.Hour}, err: `make CA key: unknown algorithm "DSA"`},
		"nothing at all":    {err: `the common name "" has 0 letters: want 1 to 64`},
	} {
		_, _, err := ca.New(test.options, now)
		if diff := cmp.Diff(test.err, errorText(err)); diff != "" {
			t.Errorf("%s: error (-want +got):\n%s", name, diff)
		}
	}
}

func TestDefaultAuthorityLifetime(t *testing.T) {
	t.Parallel()
	if got := ca.DefaultAuthorityLifetime.String(); got != "87600h0m0s" {
		t.Errorf("%s, want ten years", got)
	}
}
