package csrenv_test

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

// BenchmarkIssue measures the time from a request's creation to its certificate in an envtest suite, one request at a
// time. ns/op includes that the test polls every 2 ms.
func BenchmarkIssue(b *testing.B) {
	start(b, csrenv.Options{})
	c := newClient(b, admin)
	requests := make([]*certificatesv1.CertificateSigningRequest, 0, 1024)
	var slowest time.Duration
	for b.Loop() {
		b.StopTimer()
		obj := newRequest(b, "bench")
		requests = append(requests, obj)
		b.StartTimer()
		began := time.Now()
		if err := c.Create(b.Context(), obj); err != nil {
			b.Fatal(err)
		}
		eventually(b, obj, "Issued")
		slowest = max(slowest, time.Since(began))
	}
	b.ReportMetric(float64(slowest.Milliseconds()), "slowest-ms")
	for _, obj := range requests {
		if err := client.IgnoreNotFound(c.Delete(b.Context(), obj)); err != nil {
			b.Fatal(err)
		}
	}
}
