package approver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// Policy holds the approval rules for one signer, and what the signer says of its certificates.
type Policy struct {
	// Rules judge a request in order.
	Rules []*rules.Compiled
	// Lifetime returns the lifetime of the certificate for a requested lifetime. Nil means that this manager does not sign
	// for the signer.
	Lifetime func(requested time.Duration) time.Duration
	// Trusted returns a clause that says why API servers may accept certificates of the signer as users. It is empty if they
	// do not. reading means that this is about to be known. Nil means that this manager does not sign for the signer.
	Trusted func(now time.Time) (clause string, reading bool)
	// Assume takes for true what only a cluster knows: that ServiceAccounts and Services exist, and that API servers do not
	// trust a CA of this manager.
	Assume bool

	off atomic.Bool
}

// ApprovalRules returns the Rule that judges requests for a signer by the approval rules in policy.
func ApprovalRules(signerName string, policy *Policy) Rule {
	return Rule{SignerName: signerName, Policy: policy}
}

// UsePermission returns the permission that a requester needs for the approval rule of that name.
func UsePermission(rule string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{
		Verb: "use", Group: "csr-controller-manager.io", Version: "*", Resource: "approvalrules", Name: rule,
	}
}

// SwitchOff switches the approval rules for a signer off, or on again. They are off while the manager may not approve
// for the signer.
func (r *Reconciler) SwitchOff(signerName string, off bool) {
	for _, rule := range r.Rules {
		if rule.SignerName == signerName && rule.Policy != nil {
			rule.Policy.off.Store(off)
		}
	}
}

// Assume sets Policy.Assume of all rules, for a judgement without an API server.
func (r *Reconciler) Assume() {
	for _, rule := range r.Rules {
		if rule.Policy != nil {
			rule.Policy.Assume = true
		}
	}
}

// mostTold is the number of rules that the message about a refused request names. mostAsked bounds the reviews for it, because
// a requester without any permission causes one for each rule. mostWhy bounds the text about each rule, in bytes, so that the
// message fits into an Event.
const mostTold, mostAsked, mostWhy = 3, 10, 200

// judgeByRules decides about req by approval rules. A rule approves req if it accepts the content and the requester may use
// the rule. No rule denies. The message about a refused request names only rules that its requester may use.
func (r *Reconciler) judgeByRules(ctx context.Context, req *csr.Request, policy *Policy) (Decision, error) {
	if policy.off.Load() {
		return waitForRules(req, "RuleOff", "its approval rules are off, because this manager may not approve for this signer: "+
			"grant it the verb approve on the resource signers with this name"), nil
	}
	subject, reading := r.subjectOf(ctx, req, policy)
	if reading {
		return waitForRules(req, reasonPending, "the CAs that API servers trust are not read yet"), nil
	}
	var unknown error
	var refused []refusedRule
	for _, rule := range policy.Rules {
		refusal, err := rule.Judge(ctx, subject)
		if err == nil && refusal == "" {
			if refusal, err = r.confirmRule(ctx, rule, subject, policy); err == nil && refusal == "" {
				ruleTotal.WithLabelValues(rule.Name, verdict.Approve.String()).Inc()
				return Decision{Rule: rule.Name, Result: verdict.Approve.Because("AutoApproved",
					"Auto approving by rule %s after SubjectAccessReview.", rule.Name)}, nil
			}
		}
		if err != nil {
			unknown = errors.Join(unknown, err)
			ruleTotal.WithLabelValues(rule.Name, "Unknown").Inc()
			continue
		}
		ruleTotal.WithLabelValues(rule.Name, verdict.Wait.String()).Inc()
		refused = append(refused, refusedRule{rule.Name, refusal})
	}
	switch {
	case apierrors.IsForbidden(unknown): // another attempt does not help until an administrator acts
		return waitForRules(req, "InventoryUnavailable", "%v", unknown), nil
	case unknown != nil:
		return Decision{}, unknown
	}
	return r.tell(ctx, req, refused)
}

// notPermitted is the refusal of a requester that may not use a rule.
const notPermitted = "the requester may not use it"

// confirmRule returns why an accepted request is not approved, or an empty text: its requester may not use the rule, or a
// Service does not exist now.
func (r *Reconciler) confirmRule(
	ctx context.Context, rule *rules.Compiled, subject *rules.Subject, policy *Policy,
) (refusal string, err error) {
	allowed, err := r.Authorizer.Allowed(ctx, subject.Requester, UsePermission(rule.Name))
	switch {
	case err != nil:
		return "", fmt.Errorf("review the permission to use a rule: %w", err)
	case !allowed:
		return notPermitted, nil
	case policy.Assume:
		return "", nil
	}
	namespace, names := rule.Services(subject)
	for _, name := range names {
		service := &corev1.Service{}
		getting, cancel := context.WithTimeout(ctx, callTimeout)
		err := r.Live.Get(getting, client.ObjectKey{Namespace: namespace, Name: name}, service)
		cancel()
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Sprintf("Service %s/%s does not exist", namespace, name), nil
		case err != nil:
			return "", fmt.Errorf("get Service %s/%s: %w", namespace, name, err)
		case service.Spec.Type == corev1.ServiceTypeExternalName:
			return fmt.Sprintf("Service %s/%s is of the type ExternalName, which names another host", namespace, name), nil
		}
	}
	return "", nil
}

// refusedRule is a rule that did not approve a request, and why.
type refusedRule struct{ name, why string }

// tell returns the Decision about a request that no rule approved. It names the first three rules that the requester may use.
func (r *Reconciler) tell(ctx context.Context, req *csr.Request, refused []refusedRule) (Decision, error) {
	var told []string
	asked := 0
	for _, rule := range refused {
		if rule.why == notPermitted || len(told) == mostTold || asked == mostAsked {
			continue
		}
		asked++
		allowed, err := r.Authorizer.Allowed(ctx, req.Requester, UsePermission(rule.name))
		if err != nil {
			return Decision{}, fmt.Errorf("review the permission to use a rule: %w", err)
		}
		if allowed {
			told = append(told, fmt.Sprintf("rule %s: %s", rule.name, csr.ShortenTo(ascii.Quote(rule.why), mostWhy)))
		}
	}
	if len(told) == 0 {
		return waitForRules(req, reasonNotAuthorized, "no rule that the requester may use: bind a ClusterRole with the verb use on "+
			"approvalrules (API group csr-controller-manager.io) to user %q", csr.ShortenTo(ascii.Quote(req.Requester.Username), mostWhy)), nil
	}
	return waitForRules(req, "RuleRefused", "%s", strings.Join(told, "; ")), nil
}

// waitForRules returns the Decision about a request that no rule approves now.
func waitForRules(req *csr.Request, reason, format string, args ...any) Decision {
	return Decision{Result: verdict.Wait.Because(reason, "the request for signer %s is not approved: %s; it is checked again within "+
		"five minutes", csr.ShortenTo(req.SignerName, 120), fmt.Sprintf(format, args...))}
}

// subjectOf returns req with its facts. reading means that a fact is about to be known.
func (r *Reconciler) subjectOf(ctx context.Context, req *csr.Request, policy *Policy) (_ *rules.Subject, reading bool) {
	facts := rules.Facts{Lifetime: req.Cert.Lifetime, Trusted: "this manager does not sign for the signer, so it is unknown " +
		"whether API servers trust its CA"}
	if policy.Lifetime != nil {
		facts.Lifetime = policy.Lifetime(req.Cert.Lifetime)
	}
	switch {
	case policy.Trusted == nil:
	case policy.Assume:
		facts.Trusted = ""
	default:
		facts.Trusted, reading = policy.Trusted(r.Clock.Now())
	}
	facts.Now = func() (time.Time, error) { return r.ServerTime.Now(ctx) }
	facts.Account = sync.OnceValues(func() (rules.Account, error) {
		claimed, err := rules.Claimed(req.Requester)
		if err != nil || policy.Assume {
			return claimed, err
		}
		switch gone, err := (nodeidentity.Live{Reader: r.Live}).Gone(ctx, req.Requester); {
		case err != nil:
			return rules.Account{}, err
		case gone != "":
			return rules.Account{}, rules.NoAccount(gone)
		}
		return claimed, nil
	})
	return &rules.Subject{Request: req, Facts: facts}, reading
}

// Tried is what one approval rule says of the content of a request.
type Tried struct {
	Rule string
	// Refusal is empty if the rule accepts the content.
	Refusal string
}

// TryRules returns what each approval rule for the signer of obj says of its content, in order. It asks nothing about the
// permissions of the requester, and writes nothing.
func (r *Reconciler) TryRules(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) (tried []Tried, err error) {
	req, err := r.RequestLimits.Parse(obj)
	if err != nil {
		return nil, err
	}
	for _, rule := range r.Rules {
		if rule.SignerName != obj.Spec.SignerName || rule.Policy == nil {
			continue
		}
		subject, _ := r.subjectOf(ctx, req, rule.Policy)
		for _, each := range rule.Policy.Rules {
			refusal, err := each.Judge(ctx, subject)
			if err != nil {
				return nil, fmt.Errorf("rule %s: %w", each.Name, err)
			}
			tried = append(tried, Tried{each.Name, refusal})
		}
	}
	return tried, nil
}
