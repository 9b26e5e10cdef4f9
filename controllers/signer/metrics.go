package signer

import "github.com/csr-controller-manager/csr-controller-manager/internal/metric"

var (
	// outcomesTotal counts outcomes of approved requests, each distinct outcome of a request once. outcome is Issued,
	// Failed, Wait or Ignore. reason is empty for Issued.
	outcomesTotal = metric.Counter("csr_signer_outcomes_total",
		"Outcomes of approved CertificateSigningRequests, each distinct one of a request once.", "signer", "outcome", "reason")

	dryRunTotal = metric.Counter("csr_signer_dry_run_total",
		"Outcomes that a dry run would have caused, each distinct one once.", "signer", "outcome", "reason")

	lifetimeCutTotal = metric.Counter("csr_signer_lifetime_cut_total",
		"Certificates with a shorter lifetime, because the CA expires earlier.", "signer")

	// discardedTotal rises if another signer is active.
	discardedTotal = metric.Counter("csr_signer_discarded_total",
		"Certificates that the API server did not store: the request had changed, may not be written, or does not "+
			"fit into an object with its certificate.", "signer")

	// foreignTotal rises if another signer with another CA is active, or if a person sets certificates by hand.
	foreignTotal = metric.Counter("csr_signer_foreign_certificates_total",
		"Certificates of another CA that another program or person stored before this manager could store its own.", "signer")

	// mismatchesTotal counts wrong certificates. It must stay zero.
	mismatchesTotal = metric.Counter("csr_signer_certificate_mismatches_total",
		"Finished certificates that differ from the judged request. None was stored.", "signer")

	caNotTrusted = metric.Gauge("csr_signer_ca_not_trusted",
		"1 if the client-ca-file of the API servers does not hold this signer's CA.", "signer")

	approvedToIssued = metric.Histogram("csr_signer_approved_to_issued_seconds",
		"Time from approval (in whole seconds) to the stored certificate.", metric.Latency, "signer")

	createdToIssued = metric.Histogram("csr_signer_created_to_issued_seconds",
		"Time from creation (in whole seconds) to the stored certificate.", metric.Latency, "signer")

	errorsTotal = metric.Counter("csr_signer_errors_total", "Failed reconciles of the signer.", "reason")

	lifetimeSeconds = metric.Gauge("csr_signer_lifetime_seconds",
		"Configured lifetime of certificates for requests without a lifetime of their own.", "signer")

	// issuedLifetimeSeconds shows only requests without a lifetime of their own. A lifetime that a requester chose says
	// nothing about other certificates.
	issuedLifetimeSeconds = metric.Gauge("csr_signer_issued_lifetime_seconds",
		"Lifetime of the last certificate for a request without a lifetime of its own: "+
			"shorter than configured while a rotation caps lifetimes, or if the CA expires soon.", "signer")
)
