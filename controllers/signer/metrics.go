package signer

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	// outcomesTotal counts what became of approved requests, a repeated outcome of the same request once. outcome is
	// Issued, Failed, Wait or Ignore (not signed for good, but not marked either); reason is empty for Issued.
	outcomesTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_outcomes_total",
		Help: "What became of approved CertificateSigningRequests, each distinct outcome of a request once.",
	}, []string{"signer", "outcome", "reason"})

	// lifetimeCutTotal counts certificates that end early because their CA does.
	lifetimeCutTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_lifetime_cut_total",
		Help: "Certificates that were issued for less time than the profile gives because the CA ends before.",
	}, []string{"signer"})

	// reloadsTotal counts candidates for a signing CA: accepted or rejected.
	reloadsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_ca_reloads_total",
		Help: "New signing CAs that were read, by result: accepted, or rejected (the last good one stays in use).",
	}, []string{"result"})

	// caNotAfter is per signer, as that is what an alert is about.
	caNotAfter = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_signer_ca_not_after_seconds",
		Help: "End of the signing CA in use, in seconds since 1970; 0 when there has been none yet.",
	}, []string{"signer"})
)

func init() { metrics.Registry.MustRegister(outcomesTotal, lifetimeCutTotal, reloadsTotal, caNotAfter) }
