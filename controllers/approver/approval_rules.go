package approver

import (
	"cmp"
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
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

// ApprovalRules judges the requests for one signer by approval rules. A rule approves a request if the requester may use the rule
// and it accepts the content. No rule denies. The zero value with Rules is ready.
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

	refusals refusals
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
//  2. The first rule that the requester may use, and that accepts the request, approves (rules.Compiled.Judge, checkServices).
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
	var permitted, others []Tried // what the rules say that the requester may use, and those of which that is not known
	for _, rule := range a.Rules {
		objection, err := rule.Judge(ctx, subject)
		if err == nil && objection == csr.NoObjection {
			objection, err = checkServices(ctx, subject, from)
		}
		switch {
		case err != nil:
			if !errors.Is(unknown, err) { // several rules may need the same fact
				unknown = errors.Join(unknown, err)
			}
			ruleTotal.WithLabelValues(rule.Name, "Unknown").Inc()
		case objection != csr.NoObjection:
			ruleTotal.WithLabelValues(rule.Name, judge.Wait.String()).Inc()
			if subject.Permitted {
				permitted = append(permitted, Tried{rule.Name, objection})
			} else if objection != rules.NotPermitted {
				others = append(others, Tried{rule.Name, objection})
			}
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
	return explain(subject, permitted, others)
}

// checkServices returns an objection to an accepted request if one of its Services does not exist now.
func checkServices(ctx context.Context, subject *rules.Subject, from Readers) (csr.Objection, error) {
	if from.Assume {
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

// explain returns the Decision about a request that no rule approved. It names three rules that the requester may use.
func explain(subject *rules.Subject, permitted, others []Tried) (judge.Decision, error) {
	for _, rule := range others[:min(len(others), mostAsked)] {
		if len(permitted) >= mostNamed {
			break
		}
		allowed, err := subject.MayUse(rule.Rule)
		if err != nil {
			return judge.Decision{}, err
		}
		if allowed {
			permitted = append(permitted, rule)
		}
	}
	req, named := subject.Request, []string(nil)
	for _, rule := range permitted[:min(len(permitted), mostNamed)] {
		named = append(named, fmt.Sprintf("rule %s: %s", rule.Rule, csr.ShortenTo(ascii.Quote(string(rule.Objection)), mostWhy)))
	}
	if len(named) == 0 {
		return waitForRules(req, reasonNotAuthorized, "there is no rule that the requester may use: user %q needs "+
			"the verb use on approvalrules (API group csr-controller-manager.io)", csr.ShortenTo(ascii.Quote(req.Requester.Username), mostWhy)), nil
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
		Request: req, Lifetime: req.Cert.Lifetime, MayUse: a.refusals.reviewer(ctx, req.Requester, from.Authorizer),
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

// rememberRefusal is how long a refused review is not repeated. The first freeRefusals of a requester in that time are repeated, so
// that a requester with few requests gets a right that was just granted. mostRefusals bounds the memory, of about 200 bytes each.
const rememberRefusal, freeRefusals, mostRefusals = 30 * time.Second, 20, 20_000

// refusals remembers refused reviews, so that many requests of a requester without rights cost few. It remembers nothing that is
// allowed. The zero value is ready. It is safe for concurrent use.
type refusals struct {
	once  sync.Once
	cache *cache.LRUExpireCache // refusal → *atomic.Int32: the number of refused reviews of the requester
}

// refusal is a requester, with all that a review contains, and a rule. The key without a rule holds the number of refused
// reviews.
type refusal struct {
	requester uint64
	rule      string
}

// reviewer returns a function that reports whether who may use a rule. It asks no more after an error, which it returns again.
func (r *refusals) reviewer(ctx context.Context, who csr.Requester, authorizer authz.Authorizer) func(rule string) (bool, error) {
	r.once.Do(func() { r.cache = cmp.Or(r.cache, cache.NewLRUExpireCache(mostRefusals)) })
	requester := fairqueue.Digest(fmt.Sprintf("%#v", who))
	var failed error
	return func(rule string) (bool, error) {
		if _, refused := r.cache.Get(refusal{requester, rule}); refused || failed != nil {
			return false, failed
		}
		allowed, err := authorizer.Allowed(ctx, who, UsePermission(rule))
		switch {
		case err != nil:
			failed = fmt.Errorf("review the permission to use a rule: %w", err)
			return false, failed
		case allowed:
			return true, nil
		}
		count, found := r.cache.Get(refusal{requester: requester})
		if !found {
			count = new(atomic.Int32)
			r.cache.Add(refusal{requester: requester}, count, rememberRefusal)
		}
		if count.(*atomic.Int32).Add(1) > freeRefusals {
			r.cache.Add(refusal{requester, rule}, count, rememberRefusal)
		}
		return false, nil
	}
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
	subject.MayUse = func(string) (bool, error) { return true, nil }
	for _, each := range rules.Rules {
		objection, err := each.Judge(ctx, subject)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", each.Name, err)
		}
		tried = append(tried, Tried{each.Name, objection})
	}
	return tried, nil
}
