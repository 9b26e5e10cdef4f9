package ca

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"
)

// BenchmarkLint compares a kubelet's client certificate with its request.
func BenchmarkLint(b *testing.B) {
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	signing, _, err := New(NewOptions{CommonName: "bench", Lifetime: DefaultAuthorityLifetime}, now)
	if err != nil {
		b.Fatal(err)
	}
	profile, err := NewProfile(ProfileConfig{Lifetime: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	req := Request{
		PublicKey: signing.cert.PublicKey, Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	issued, err := signing.Issue(profile, req, now)
	if err != nil {
		b.Fatal(err)
	}
	leaf, _ := pem.Decode(issued.PEM)
	for b.Loop() {
		if differences := signing.lint(leaf.Bytes, issued, profile, req); len(differences) > 0 {
			b.Fatal(differences)
		}
	}
}
