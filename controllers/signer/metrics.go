package signer

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
)

var (
	// outcomesTotal counts outcomes of approved requests, each distinct outcome of a request once. outcome is Issued,
	// Failed, Wait or Ignore. reason is empty for Issued.
	outcomesTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_outcomes_total",
		Help: "Outcomes of approved CertificateSigningRequests, each distinct one of a request once.",
	}, []string{"signer", "outcome", "reason"})

	dryRunTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_dry_run_total",
		Help: "Outcomes that a dry run would have caused, each distinct one once.",
	}, []string{"signer", "outcome", "reason"})

	lifetimeCutTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_lifetime_cut_total",
		Help: "Certificates with a shorter lifetime, because the CA expires earlier.",
	}, []string{"signer"})

	// discardedTotal rises if another signer is active.
	discardedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_discarded_total",
		Help: "Certificates that the API server did not store: the request had changed, may not be written, or does not " +
			"fit into an object with its certificate.",
	}, []string{"signer"})

	// foreignTotal rises if another signer with another CA is active, or if a person sets certificates by hand.
	foreignTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_foreign_certificates_total",
		Help: "Certificates of another CA that another program or person stored before this manager could store its own.",
	}, []string{"signer"})

	// mismatchesTotal counts wrong certificates. It must stay zero.
	mismatchesTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_certificate_mismatches_total",
		Help: "Finished certificates that differ from the judged request. None was stored.",
	}, []string{"signer"})

	caNotTrusted = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_signer_ca_not_trusted",
		Help: "1 if the client-ca-file of the API servers does not hold this signer's CA.",
	}, []string{"signer"})

	approvedToIssued = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csr_signer_approved_to_issued_seconds",
		Help:    "Time from approval (in whole seconds) to the stored certificate.",
		Buckets: report.LatencyBuckets,
	}, []string{"signer"})

	createdToIssued = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csr_signer_created_to_issued_seconds",
		Help:    "Time from creation (in whole seconds) to the stored certificate.",
		Buckets: report.LatencyBuckets,
	}, []string{"signer"})

	errorsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_signer_errors_total",
		Help: "Failed reconciles of the signer.",
	}, []string{"reason"})

	lifetimeSeconds = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_signer_lifetime_seconds",
		Help: "Configured lifetime of certificates for requests without a lifetime of their own.",
	}, []string{"signer"})

	// issuedLifetimeSeconds shows only requests without a lifetime of their own. A lifetime that a requester chose says
	// nothing about other certificates.
	issuedLifetimeSeconds = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_signer_issued_lifetime_seconds",
		Help: "Lifetime of the last certificate for a request without a lifetime of its own: " +
			"shorter than configured while a rotation caps lifetimes, or if the CA expires soon.",
	}, []string{"signer"})
)

func init() {
	metrics.Registry.MustRegister(outcomesTotal, dryRunTotal, lifetimeCutTotal, discardedTotal, mismatchesTotal,
		foreignTotal, caNotTrusted, approvedToIssued, createdToIssued, errorsTotal, lifetimeSeconds, issuedLifetimeSeconds)
}
