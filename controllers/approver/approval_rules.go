package approver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

// ApprovalRules judges the requests for one signer by approval rules. A rule approves a request if it accepts the content and
// the requester may use the rule. No rule denies.
type ApprovalRules struct {
	// Rules judge a request in order.
	Rules []*rules.Compiled
	// Lifetime returns the lifetime of the certificate for a requested lifetime. Nil means that this manager does not sign
	// for the signer.
	Lifetime func(requested time.Duration) time.Duration
	// Trusted returns whether API servers may accept certificates of the signer as users. reading means that this is about to
	// be known. Nil means that this manager does not sign for the signer.
	Trusted func(now time.Time) (trust rules.Trust, reading bool)
	// Off reports that this manager may not approve requests for the signer, so that no rule is tried. Nil means never.
	Off func() bool
}

// UsePermission returns the permission that a requester needs for the approval rule of that name.
func UsePermission(rule string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{
		Verb: "use", Group: "csr-controller-manager.io", Version: "*", Resource: "approvalrules", Name: rule,
	}
}

// mostNamed is the number of rules that the message about a refused request names. mostAsked bounds the reviews for it, because
// a requester without any permission causes one for each rule. mostWhy bounds the text about each rule, in bytes, so that the
// message fits into an Event.
const mostNamed, mostAsked, mostWhy = 3, 10, 200

// Judge implements Judge. The message about a refused request names only rules that its requester may use.
//
//  1. The manager must have the right to approve.
//  2. The first rule that accepts the content, and that the requester may use, approves (confirm).
//  3. A fault is retried by the queue, unless an administrator must act.
//  4. Otherwise the request waits.
func (a *ApprovalRules) Judge(ctx context.Context, req *csr.Request, from Readers) (judge.Decision, error) {
	if a.Off != nil && a.Off() {
		return waitForRules(req, "RightsMissing", "the approval rules for this signer are off, because this manager may not approve its "+
			"requests: grant the manager the verb approve on the resource signers of the API group certificates.k8s.io"), nil
	}
	subject, reading := a.subjectOf(ctx, req, from)
	if reading {
		return waitForRules(req, reasonPending, "the CAs that API servers trust are not read yet"), nil
	}
	var unknown error
	var refused []Tried
	for _, rule := range a.Rules {
		objection, err := rule.Judge(ctx, subject)
		if err == nil && objection == csr.NoObjection {
			objection, err = confirm(ctx, rule.Name, subject, from)
		}
		switch {
		case err != nil:
			unknown = errors.Join(unknown, err)
			ruleTotal.WithLabelValues(rule.Name, "Unknown").Inc()
		case objection != csr.NoObjection:
			ruleTotal.WithLabelValues(rule.Name, judge.Wait.String()).Inc()
			refused = append(refused, Tried{rule.Name, objection})
		default:
			ruleTotal.WithLabelValues(rule.Name, judge.Approve.String()).Inc()
			return judge.Decision{Verdict: judge.Approve, Reason: "AutoApproved", By: rule.Name, Message: fmt.Sprintf(
				"Auto approving by rule %s after SubjectAccessReview.", rule.Name)}, nil
		}
	}
	switch {
	case apierrors.IsForbidden(unknown): // another attempt does not help until an administrator acts
		return waitForRules(req, reasonUnavailable, "%v", unknown), nil
	case unknown != nil:
		return judge.Decision{}, unknown
	}
	return explain(ctx, req, refused, from)
}

// notPermitted is the objection to a requester that may not use a rule.
const notPermitted csr.Objection = "the requester may not use it"

// confirm returns an objection to an accepted request if its requester may not use the rule, or if a Service does not exist now.
func confirm(ctx context.Context, rule string, subject *rules.Subject, from Readers) (csr.Objection, error) {
	allowed, err := from.Authorizer.Allowed(ctx, subject.Requester, UsePermission(rule))
	switch {
	case err != nil:
		return csr.NoObjection, fmt.Errorf("review the permission to use a rule: %w", err)
	case !allowed:
		return notPermitted, nil
	case from.Assume:
		return csr.NoObjection, nil
	}
	for _, key := range subject.Services {
		service := &corev1.Service{}
		switch err := call.Get(ctx, from.Live, key, service); {
		case apierrors.IsNotFound(err):
			return csr.Objection(fmt.Sprintf("Service %s does not exist", key)), nil
		case err != nil:
			return csr.NoObjection, fmt.Errorf("get Service %s: %w", key, err)
		case service.Spec.Type == corev1.ServiceTypeExternalName:
			return csr.Objection(fmt.Sprintf("Service %s is of the type ExternalName, which names another host", key)), nil
		}
	}
	return csr.NoObjection, nil
}

// explain returns the Decision about a request that no rule approved. It names the first three rules that the requester may use.
func explain(ctx context.Context, req *csr.Request, refused []Tried, from Readers) (judge.Decision, error) {
	var named []string
	for _, rule := range refused[:min(len(refused), mostAsked)] {
		if rule.Objection == notPermitted || len(named) == mostNamed {
			continue
		}
		allowed, err := from.Authorizer.Allowed(ctx, req.Requester, UsePermission(rule.Rule))
		if err != nil {
			return judge.Decision{}, fmt.Errorf("review the permission to use a rule: %w", err)
		}
		if allowed {
			named = append(named, fmt.Sprintf("rule %s: %s", rule.Rule, csr.ShortenTo(ascii.Quote(string(rule.Objection)), mostWhy)))
		}
	}
	if len(named) == 0 {
		return waitForRules(req, reasonNotAuthorized, "no rule that the requester may use: bind a ClusterRole with the verb use on "+
			"approvalrules (API group csr-controller-manager.io) to user %q", csr.ShortenTo(ascii.Quote(req.Requester.Username), mostWhy)), nil
	}
	return waitForRules(req, "RuleRefused", "%s", strings.Join(named, "; ")), nil
}

// waitForRules returns the Decision about a request that no rule approves now.
func waitForRules(req *csr.Request, reason, format string, args ...any) judge.Decision {
	return judge.Wait.Because(reason, "the request for signer %s is not approved: %s; it is checked again within "+
		"five minutes", csr.ShortenTo(req.SignerName, 120), fmt.Sprintf(format, args...))
}

// subjectOf returns req with its facts. reading means that a fact is about to be known.
func (a *ApprovalRules) subjectOf(ctx context.Context, req *csr.Request, from Readers) (_ *rules.Subject, reading bool) {
	subject := &rules.Subject{
		Request: req, Lifetime: req.Cert.Lifetime,
		Trust: rules.Trust{Why: "this manager does not sign for the signer, so it is unknown whether API servers trust its CA"},
		Gone:  func() (csr.Objection, error) { return csr.NoObjection, nil },
		Now:   func() (time.Time, error) { return from.ServerTime.Now(ctx) },
	}
	if a.Lifetime != nil {
		subject.Lifetime = a.Lifetime(req.Cert.Lifetime)
	}
	if !from.Assume {
		subject.Gone = sync.OnceValues(func() (csr.Objection, error) {
			return nodeidentity.Live{Reader: from.Live}.Gone(ctx, req.Requester)
		})
	}
	switch {
	case a.Trusted == nil:
	case from.Assume:
		subject.Trust = rules.Trust{Untrusted: true}
	default:
		subject.Trust, reading = a.Trusted(from.ServerTime.Latest())
	}
	return subject, reading
}

// Tried is what one approval rule says of a request.
type Tried struct {
	Rule      string
	Objection csr.Objection
}

// TryRules returns what each approval rule for the signer of obj says of its content, in order. It asks nothing about the
// permissions of the requester, and writes nothing.
func (r *Reconciler) TryRules(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) (tried []Tried, err error) {
	req, err := r.RequestLimits.Parse(obj)
	if err != nil {
		return nil, err
	}
	rules, _ := r.Judges[obj.Spec.SignerName].(*ApprovalRules)
	if rules == nil {
		return nil, nil
	}
	subject, _ := rules.subjectOf(ctx, req, r.Readers)
	for _, each := range rules.Rules {
		objection, err := each.Judge(ctx, subject)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", each.Name, err)
		}
		tried = append(tried, Tried{each.Name, objection})
	}
	return tried, nil
}
