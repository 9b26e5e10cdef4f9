package keypair

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	// reloadsTotal counts candidates for a signing CA: accepted or rejected.
	reloadsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_ca_reloads_total",
		Help: "New signing CAs that were read, by result: accepted, or rejected (the last good one stays in use).",
	}, []string{"result"})

	// caRejected lasts as long as the state does, where reloadsTotal counts the moment.
	caRejected = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_signer_ca_rejected",
		Help: "1 while the newest candidate for the signing CA can't be used, whether or not there is a good one in use.",
	}, []string{"signer"})

	// caNotAfter is per signer, because alerts are about a signer.
	caNotAfter = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_signer_ca_expiration_timestamp_seconds",
		Help: "End of the signing CA in use, in seconds since 1970; 0 when there has been none yet.",
	}, []string{"signer"})
)

func init() { metrics.Registry.MustRegister(reloadsTotal, caRejected, caNotAfter) }
