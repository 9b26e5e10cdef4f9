package cleaner

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// reasonDue is the reason of every deletion.
const reasonDue = "Due"

// deletedTotal counts deletions by the state that the request was in.
var deletedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "csr_cleaner_deleted_total",
	Help: "Deleted CertificateSigningRequests, by state.",
}, []string{"state", "reason"})

var dryRunTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "csr_cleaner_dry_run_total",
	Help: "CertificateSigningRequests that a dry run would have deleted, each once.",
}, []string{"state", "reason"})

var errorsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "csr_cleaner_errors_total",
	Help: "Failed reconciles of the cleaner, which are retried.",
}, []string{"reason"})

func init() { metrics.Registry.MustRegister(deletedTotal, dryRunTotal, errorsTotal) }
