package approver

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

var (
	// decisionsTotal counts decisions, each distinct decision about a request once. signer is a configured signer. rule
	// is the permission or the approval rule that approved, or empty.
	decisionsTotal = metric.Counter("csr_approver_decisions_total",
		"Decisions: each distinct outcome of a CertificateSigningRequest once, and again after 50 minutes.",
		"signer", "rule", "verdict", "reason")

	// ruleTotal counts judgements of approval rules. rule is a configured rule.
	ruleTotal = metric.Counter("csr_approver_rule_total",
		"Judgements by each approval rule, repeated ones too: Approve, Wait, or Unknown if a fact could not be read.",
		"rule", "verdict")

	dryRunTotal = metric.Counter("csr_approver_dry_run_total",
		"Decisions that a dry run would have made, each distinct one once.", "signer", "verdict", "reason")

	createdToApproved = metric.Histogram("csr_approver_created_to_approved_seconds",
		"Time from creation (in whole seconds) to approval.", metric.Latency, "signer")

	reviewSeconds = metric.Histogram("csr_approver_review_seconds",
		"How long SubjectAccessReviews took.", prometheus.DefBuckets, "result")

	errorsTotal = metric.Counter("csr_approver_errors_total", "Failed reconciles of the approver.", "reason")
)

// measured records the duration of the reviews that are sent.
type measured struct{ authz.Authorizer }

// Allowed sends a review and records its duration.
func (m measured) Allowed(
	ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes,
) (bool, error) {
	timer := prometheus.NewTimer(nil)
	allowed, err := m.Authorizer.Allowed(ctx, who, what)
	result := map[bool]string{true: "allowed", false: "refused"}[allowed]
	if err != nil {
		result = "error"
	}
	reviewSeconds.WithLabelValues(result).Observe(timer.ObserveDuration().Seconds())
	return allowed, err
}
