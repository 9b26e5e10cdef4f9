package approver

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// decisionsTotal counts decisions, a repeated one of the same request once. signer is a configured one; rule is the
// recogniser that approved or empty.
var decisionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "csr_approver_decisions_total",
	Help: "Decisions about CertificateSigningRequests, each distinct outcome of a request once.",
}, []string{"signer", "rule", "verdict", "reason"})

func init() { metrics.Registry.MustRegister(decisionsTotal) }
