package ca_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// BenchmarkIssue issues a kubelet's client certificate, lint included.
func BenchmarkIssue(b *testing.B) {
	for _, kind := range []string{"RSA-2048", "P-256", "Ed25519"} {
		b.Run(kind, func(b *testing.B) {
			signing, checked := authority(b, kind), profile(b, ca.ProfileConfig{Lifetime: time.Hour})
			req := ca.Request{
				PublicKey:   keys["leaf"]().Public(),
				Subject:     pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}},
				KeyUsage:    x509.KeyUsageDigitalSignature,
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			}
			for b.Loop() {
				if _, err := signing.Issue(checked, req, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
