package csr_test

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// BenchmarkParse parses a kubelet's request and verifies its signature.
func BenchmarkParse(b *testing.B) {
	obj := object(b)
	for b.Loop() {
		req, err := csr.Parse(obj)
		if err != nil {
			b.Fatal(err)
		}
		if err := req.CheckSignature(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDeadline computes the end of the retention of an issued request.
func BenchmarkDeadline(b *testing.B) {
	obj := object(b, func(obj *certificatesv1.CertificateSigningRequest) {
		obj.Status.Conditions = append(obj.Status.Conditions, condition("Approved", "True", now))
		obj.Status.Certificate = certificateUntil(b, now.Add(24*time.Hour))
	})
	var policy csr.RetentionPolicy
	for b.Loop() {
		if _, due := policy.Deadline(obj); !due {
			b.Fatal("the request is never due")
		}
	}
}
