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

var errorsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "csr_cleaner_errors_total",
	Help: "Reconciles of the cleaner that failed and are tried again, by the API server's reason, or Other.",
}, []string{"reason"})

func init() { metrics.Registry.MustRegister(deletedTotal, errorsTotal) }
