package cleaner

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// deletedTotal counts deletions by the state that the request was in.
var deletedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "csr_cleaner_deleted_total",
	Help: "CertificateSigningRequests that were deleted because they were due, by state.",
}, []string{"state"})

func init() { metrics.Registry.MustRegister(deletedTotal) }
