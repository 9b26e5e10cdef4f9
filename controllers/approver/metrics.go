package approver

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

var (
	// decisionsTotal counts decisions, each distinct decision about a request once. signer is a configured signer. rule
	// is the permission or the approval rule that approved, or empty.
	decisionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_approver_decisions_total",
		Help: "Decisions: each distinct outcome of a CertificateSigningRequest once, and again after 50 minutes.",
	}, []string{"signer", "rule", "verdict", "reason"})

	// ruleTotal counts judgements of approval rules. rule is a configured rule.
	ruleTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_approver_rule_total",
		Help: "Judgements by each approval rule, repeated ones too: Approve, Wait, or Unknown if a fact could not be read.",
	}, []string{"rule", "verdict"})

	dryRunTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_approver_dry_run_total",
		Help: "Decisions that a dry run would have made, each distinct one once.",
	}, []string{"signer", "verdict", "reason"})

	createdToApproved = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csr_approver_created_to_approved_seconds",
		Help:    "Time from creation (in whole seconds) to approval.",
		Buckets: report.LatencyBuckets,
	}, []string{"signer"})

	reviewSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csr_approver_review_seconds",
		Help:    "How long SubjectAccessReviews took.",
		Buckets: prometheus.DefBuckets,
	}, []string{"result"})

	errorsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csr_approver_errors_total",
		Help: "Failed reconciles of the approver.",
	}, []string{"reason"})
)

func init() {
	metrics.Registry.MustRegister(decisionsTotal, ruleTotal, dryRunTotal, createdToApproved, reviewSeconds, errorsTotal)
}

// measured records the duration of the reviews that are sent.
type measured struct{ authz.Authorizer }

// Allowed sends a review and records its duration.
func (m measured) Allowed(
	ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes,
) (bool, error) {
	result := "refused"
	timer := prometheus.NewTimer(prometheus.ObserverFunc(func(seconds float64) {
		reviewSeconds.WithLabelValues(result).Observe(seconds)
	}))
	defer timer.ObserveDuration()
	allowed, err := m.Authorizer.Allowed(ctx, who, what)
	switch {
	case err != nil:
		result = "error"
	case allowed:
		result = "allowed"
	}
	return allowed, err
}
