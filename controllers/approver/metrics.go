package approver

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

var (
	// decisionsTotal counts decisions, each distinct decision about a request once. signer is a configured signer. rule
	// is the recogniser that approved, or empty.
	decisionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_approver_decisions_total",
		Help: "Decisions about CertificateSigningRequests, each distinct outcome of a request once.",
	}, []string{"signer", "rule", "verdict", "reason"})

	// dryRunTotal counts requests after another approver has decided them, or after their deletion. verdict and reason
	// are of the dry run. outcome is agreed (both approved, or neither did), disagreed, or undecided (deleted without a
	// decision).
	dryRunTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_approver_dry_run_total",
		Help: "CertificateSigningRequests that a dry run has judged, each once, by its verdict and by whether another " +
			"approver decided the same: agreed, disagreed, or undecided.",
	}, []string{"signer", "verdict", "reason", "outcome"})

	createdToApproved = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csr_approver_created_to_approved_seconds",
		Help:    "Time from creation, which the API server records in whole seconds, to approval.",
		Buckets: report.LatencyBuckets,
	}, []string{"signer"})

	reviewSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csr_approver_review_seconds",
		Help:    "How long SubjectAccessReviews took, by result: allowed, refused or error.",
		Buckets: prometheus.DefBuckets,
	}, []string{"result"})

	nodesLeftOut = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_approver_nodes_left_out",
		Help: "Nodes that report names or addresses of two or more other Nodes: " +
			"what they report is left out of the comparison.",
	})

	pacedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_approver_paced_total",
		Help: "Judgements that were postponed by one to two minutes, because the requester has lacked the permission " +
			"1000 times.",
	}, []string{"signer"})

	errorsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_approver_errors_total",
		Help: "Reconciles of the approver that failed and are retried, by the API server's reason, or Other.",
	}, []string{"reason"})
)

func init() {
	metrics.Registry.MustRegister(decisionsTotal, dryRunTotal, createdToApproved, reviewSeconds, nodesLeftOut, pacedTotal,
		errorsTotal)
}

// measured records the duration of the reviews that are sent.
type measured struct{ authz.Authorizer }

// Allowed sends a review and records its duration.
func (m measured) Allowed(
	ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes,
) (bool, error) {
	real := clock.RealClock{}
	start := real.Now()
	allowed, err := m.Authorizer.Allowed(ctx, who, what)
	result := "refused"
	switch {
	case err != nil:
		result = "error"
	case allowed:
		result = "allowed"
	}
	reviewSeconds.WithLabelValues(result).Observe(real.Since(start).Seconds())
	return allowed, err
}
