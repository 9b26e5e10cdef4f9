// Package approver approves CertificateSigningRequests. It decides by pure rules and by one SubjectAccessReview per
// recogniser, and writes one condition. It signs and deletes nothing.
package approver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	expiring "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/apicall"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/internal/unanswered"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/requestcache"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-approver"

// Denial says whether the approver may deny.
type Denial string

const (
	// DenialNever leaves requests that can never become valid to other approvers, people and the cleaner. It is the
	// default: a denied kubelet makes a new request every half minute, and a waiting kubelet every quarter of an hour.
	DenialNever Denial = "Never"
	// DenialPermanent denies requests that can never become valid.
	DenialPermanent Denial = "Permanent"
)

// Reconciler approves requests. SetupWithManager sets nil fields from the manager.
type Reconciler struct {
	// Rules judge requests, each for its signer. Requests for other signers are not changed and cost no API call.
	Rules []Rule
	// Denial defaults to DenialNever.
	Denial Denial

	// RequestLimits bounds what is read of a request. A larger request is ignored, or denied with DenialPermanent.
	RequestLimits csr.Limits

	// DryRun writes to no request. It reports each decision and compares it with another approver's.
	DryRun bool

	// Inventory, if set, runs with the controller. Rules read it.
	Inventory *Inventory
	// BlockList, if set, names the nodes and the certificates for which nothing is approved. The caller runs it.
	BlockList *blocklist.List
	// Limit bounds the approvals of each requester for each node.
	Limit Limit
	// ReviewsAtOnce bounds the reviews of each permission that are in progress; zero means 10.
	ReviewsAtOnce int

	Client     client.Client
	Authorizer authz.Authorizer
	Reporter   *report.Reporter
	Clock      clock.PassiveClock
	// ServerTime is the clock by which ages count; nil means Clock.
	ServerTime *servertime.Clock
	// Audit, if set, receives a record of each decision, beside the log.
	Audit *audit.Log
	// Approved, if set, is called after each approval, with the request as it was judged and as the API server returned
	// it. It must only read them, and must not block.
	Approved func(judged, approved *certificatesv1.CertificateSigningRequest)

	// Answered, if set, is called with the name of each request for which a slow source or a review has an answer.
	Answered func(request string)

	// Live reads past the cache. After a write without a certain answer, it shows whether the write was stored.
	Live client.Reader
	// Requests holds parsed requests, and whole requests if the cache of Client strips them.
	Requests *requestcache.Cache

	index           pendingIndex
	queue           *pending.Queue // the controller's queue
	reviews         map[authorizationv1.ResourceAttributes]*pending.Calls[bool]
	written         unanswered.Writes[outcome]
	makeDecided     sync.Once
	decidedVersions *expiring.LRUExpireCache // keys are versions; see justDecided
	opinions        opinions
	limiter         *limiter
	paces           paces
}

const (
	// rememberedDecisions bounds the judged versions in a Reconciler. It is more than the API server stores in the seconds
	// for which the cache may be behind.
	rememberedDecisions = 10_000
	// decidedFor is how long a judged version is not judged again. The cache is behind for seconds. After that time the
	// version is really undecided: an earlier state of etcd was restored.
	decidedFor = time.Minute
)

// version is a version of a request. While the cache has a version about which a decision is stored, the cache does not
// show the decision yet, and the request must not be judged again.
type version struct {
	request         types.UID
	resourceVersion string
}

func versionOf(obj *certificatesv1.CertificateSigningRequest) version {
	return version{obj.UID, obj.ResourceVersion}
}

// justDecided holds the versions about which a decision was stored in the last minute.
func (r *Reconciler) justDecided() *expiring.LRUExpireCache {
	r.makeDecided.Do(func() {
		r.decidedVersions = expiring.NewLRUExpireCacheWithClock(rememberedDecisions, r.Clock)
	})
	return r.decidedVersions
}

// rule returns the rule for obj, or nil if obj has no rule, is decided or is being deleted. A requester can keep a
// deleted request forever with a finalizer.
func (r *Reconciler) rule(obj *certificatesv1.CertificateSigningRequest) *Rule {
	if obj.DeletionTimestamp != nil {
		return nil
	}
	for i := range r.Rules {
		if r.Rules[i].SignerName == obj.Spec.SignerName && csr.Undecided(obj) {
			return &r.Rules[i]
		}
	}
	return nil
}

// Reconcile decides about a request and writes at most one condition.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, key)
	if errors.Is(err, requestcache.ErrChanged) {
		return reconcile.Result{RequeueAfter: requestcache.Lag}, nil
	}
	if err != nil {
		errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
	}
	return apicall.Requeue(ctx, result, err)
}

func (r *Reconciler) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// This is the cache's own object: judging only reads it, and apply writes a copy.
	if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			r.written.Drop(key.Name) // the deletion may have come before the failure of the write
			if r.DryRun {
				r.opinions.countDeleted(key.Name)
			}
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if r.DryRun && r.ours(obj) {
		return r.reconcileDryRun(ctx, obj)
	}
	if _, stored := r.justDecided().Get(versionOf(obj)); stored { // the cache will show the decision
		return reconcile.Result{RequeueAfter: decidedFor}, nil
	}
	return r.reconcileCached(ctx, obj)
}

// reconcileCached decides about a request that the cache holds, or settles an earlier write to it.
func (r *Reconciler) reconcileCached(
	ctx context.Context, cached *certificatesv1.CertificateSigningRequest,
) (reconcile.Result, error) {
	undecided := r.rule(cached) != nil
	if _, unsettled := r.written.Of(cached); !undecided && !unsettled {
		return reconcile.Result{}, nil
	}
	if undecided {
		age := r.serverTime().Since(cached.CreationTimestamp.Time)
		if wait := r.paces.wait(cached, age, r.Clock.Now()); wait > 0 {
			pacedTotal.WithLabelValues(cached.Spec.SignerName).Inc()
			return reconcile.Result{RequeueAfter: wait}, nil
		}
	}
	obj, err := r.Requests.Whole(ctx, r.Live, cached)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !undecided {
		r.settle(ctx, obj)
		return reconcile.Result{}, nil
	}
	req, decision, err := r.judge(ctx, obj)
	if err != nil {
		return reconcile.Result{}, err
	}
	result, err := r.apply(ctx, obj, req, decision)
	if !decision.Pending { // otherwise the answer needs the object that was read
		result.RequeueAfter = r.Requests.Pause(cached, result.RequeueAfter)
	}
	return result, err
}

// judge calls Decide and applies the Limit. The Decision is Pending while an answer is missing.
func (r *Reconciler) judge(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest,
) (*csr.Request, Decision, error) {
	req, decision, err := r.Decide(ctx, obj)
	if err == nil && decision.Reason == reasonTooOld {
		req, decision, err = r.decideAgain(ctx, obj, req, decision)
	}
	if waiting := (*pending.Waiting)(nil); errors.As(err, &waiting) {
		if !r.index.holds(obj) { // no other event would drop the question after a deletion
			r.forget(obj.UID)
		}
		return req, r.setAside(req, err, waiting.Since), nil
	}
	r.forget(obj.UID)
	if err == nil && decision.Verdict == verdict.Approve {
		if limited, within := r.limiter.take(req); !within {
			decision = limited
		}
	}
	return req, decision, err
}

// decideAgain decides again about a request that seems to be too old, if the clock of an API server was set back.
func (r *Reconciler) decideAgain(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision Decision,
) (*csr.Request, Decision, error) {
	before := r.serverTime().Now()
	if err := r.serverTime().Refresh(ctx, obj.ResourceVersion); err != nil {
		return req, Decision{}, err
	}
	if r.serverTime().Now().Before(before) {
		return r.Decide(ctx, obj)
	}
	return req, decision, nil
}

// pendingAfter is how long a request waits for a source before it reports that. Most answers take less time.
const pendingAfter = time.Second

// setAside returns the Decision about a request that waits for an answer, because of err. Its reason is empty if the
// wait is short or is for a review. A review ends by itself, with an answer or an error.
func (r *Reconciler) setAside(req *csr.Request, err error, since time.Time) Decision {
	decision := Decision{Result: verdict.Result{Verdict: verdict.Wait}, Pending: true}
	source := (*inventory.Unavailable)(nil)
	if errors.As(err, &source) && r.Clock.Since(since) >= pendingAfter {
		decision.Result = verdict.Wait.Because("InventoryPending",
			"source %s of approval.inventory has not answered about node %q yet; the request is judged when it answers",
			source.Source, csr.Shorten(req.NodeName()))
	}
	return decision
}

// forget drops the answers for a request that is decided or will be judged again.
func (r *Reconciler) forget(request types.UID) {
	for _, reviews := range r.reviews {
		reviews.Forget(request)
	}
	if r.Inventory != nil {
		for _, source := range r.Inventory.background {
			source.Forget(request)
		}
	}
}

// Decide returns what Reconcile would decide about obj, and writes nothing. The request is nil if it cannot be parsed.
// If obj has no rule or is decided, the Decision is zero. The message is ASCII, because kubectl prints conditions.
func (r *Reconciler) Decide(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest,
) (*csr.Request, Decision, error) {
	req, decision, err := r.decide(ctx, obj)
	decision.Message = ascii.Quote(decision.Message)
	return req, decision, err
}

func (r *Reconciler) decide(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest,
) (*csr.Request, Decision, error) {
	rule := r.rule(obj)
	if rule == nil {
		return nil, Decision{}, nil
	}
	req, err := r.Requests.Parse(obj, r.RequestLimits)
	if err != nil {
		return nil, unread(err), nil
	}
	if blocked, is := r.blocked(req); is {
		return req, blocked, nil
	}
	decision, err := r.ask(ctx, rule, req)
	if blocked, is := r.blocked(req); is { // the block list may have changed meanwhile
		return req, blocked, nil
	}
	return req, decision, err
}

// blocked returns the Decision about a request for a blocked node, from a blocked node, or made with a blocked
// certificate.
func (r *Reconciler) blocked(req *csr.Request) (Decision, bool) {
	reason, message := r.BlockList.Check(req)
	return Decision{Result: verdict.Result{Verdict: verdict.Wait, Reason: reason, Message: message}}, reason != ""
}

// apply writes decision to obj if it is an Approve, or a Deny that the configuration permits.
func (r *Reconciler) apply(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision Decision,
) (reconcile.Result, error) {
	var kind certificatesv1.RequestConditionType
	switch {
	case decision.Verdict == verdict.Approve:
		kind = certificatesv1.CertificateApproved
	case decision.Verdict == verdict.Deny && r.Denial == DenialPermanent:
		kind = certificatesv1.CertificateDenied
	default:
		return r.refuse(ctx, obj, req, decision), nil
	}
	judged, obj := obj, obj.DeepCopy()
	csr.AddCondition(obj, kind, decision.Reason, decision.Message, time.Time{})
	about := outcome{req, decision, kind}
	err := r.Client.SubResource("approval").Update(ctx, obj)
	if err != nil {
		if landed, unsettled := r.landed(ctx, obj, about, err); !landed {
			return r.unwritten(ctx, obj, about, err, unsettled)
		}
	}
	r.justDecided().Add(versionOf(judged), nil, decidedFor)
	r.decided(ctx, obj, about)
	if err == nil && kind == certificatesv1.CertificateApproved && r.Approved != nil {
		obj.ManagedFields = nil // as in the cache
		r.Approved(judged, obj)
	}
	return reconcile.Result{}, nil
}

// refuse reports why obj is not decided, and returns when to reconcile it again. After Wait the pause is the age of
// the request, so it doubles, from a second to a minute. After any other verdict there is no retry, because the spec
// does not change. A Deny that the configuration does not permit counts as Ignore.
func (r *Reconciler) refuse(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision Decision,
) reconcile.Result {
	if decision.Verdict == verdict.Deny {
		decision.Verdict = verdict.Ignore
	}
	if decision.Reason != "" && r.Reporter.Request(obj, obj.Spec.Username, "Approve", decision.Reason, decision.Message) {
		r.record(ctx, obj, req, decision)
	}
	switch {
	case decision.Reason == reasonNotAuthorized && decision.Verdict == verdict.Wait:
		r.paces.refused(obj)
	case !decision.Pending:
		r.paces.forget(obj.Name)
	}
	if decision.Verdict != verdict.Wait {
		return reconcile.Result{}
	}
	return r.again(obj)
}

// again returns when to judge obj again. If a newer request supersedes obj, the pause is the longest one.
func (r *Reconciler) again(obj *certificatesv1.CertificateSigningRequest) reconcile.Result {
	low, pause := handler.LowPriority, csr.Pause(r.serverTime().Since(obj.CreationTimestamp.Time))
	if r.index.superseded(obj.Name) {
		pause = time.Minute
	}
	return reconcile.Result{RequeueAfter: pause, Priority: &low}
}

// serverTime returns the clock by which ages count.
func (r *Reconciler) serverTime() *servertime.Clock {
	if r.ServerTime == nil {
		return servertime.Of(r.Clock)
	}
	return r.ServerTime
}

// record counts a decision and writes it to the audit log.
func (r *Reconciler) record(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision Decision,
) {
	decisionsTotal.WithLabelValues(obj.Spec.SignerName, decision.Rule, decision.Verdict.String(), decision.Reason).Inc()
	r.audit(ctx, obj, req, decision.Verdict.String(), decision)
}

// audit writes decision to the audit log, with as for its verdict.
func (r *Reconciler) audit(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, as string, decision Decision,
) {
	record := audit.Of(obj, req)
	record.Verdict, record.Rule, record.Reason, record.Message = as, decision.Rule, decision.Reason, decision.Message
	r.Audit.Write(ctx, r.Clock.Now(), audit.Decided, record)
}

// Judge decides about a request. An error means that it could not decide.
type Judge func(context.Context, *csr.Request) (Decision, error)

// ask judges req by rule.
func (r *Reconciler) ask(ctx context.Context, rule *Rule, req *csr.Request) (Decision, error) {
	if rule.Judge != nil {
		return rule.Judge(ctx, req)
	}
	recognisers, decision := rule.review(req)
	if decision.Verdict != verdict.Ignore {
		return decision, nil
	}
	for _, recogniser := range recognisers {
		if decision, err := r.askFor(ctx, recogniser, req); err != nil || decision.Reason != "" {
			return decision, err
		}
	}
	return notAuthorized(req, recognisers), nil
}

// askFor judges req by one recogniser. If the requester lacks the permission, the Decision has no reason.
func (r *Reconciler) askFor(ctx context.Context, recogniser Recogniser, req *csr.Request) (Decision, error) {
	if recogniser.Gate != nil {
		if decision, err := recogniser.Gate(ctx, req); err != nil || decision.Reason != "" {
			return decision, err
		}
	}
	allowed, err := r.allowed(ctx, req, recogniser.Permission)
	if err != nil {
		return Decision{}, fmt.Errorf("review permission %s of the requester: %w", recogniser.Name, err)
	}
	if !allowed {
		return Decision{}, nil
	}
	if recogniser.Confirm != nil {
		if decision, err := recogniser.Confirm(ctx, req); err != nil || decision.Reason != "" {
			return decision, err
		}
	}
	return approved(recogniser), nil
}

const (
	// reviewTimeout bounds one review. It also bounds how long the answer stays valid for the requests that asked.
	reviewTimeout = 30 * time.Second
	// reviewsPerRequester bounds the reviews of one requester and permission that are in progress. So a review that hangs
	// delays no other requester.
	reviewsPerRequester = 2
	// defaultReviewsAtOnce is half of the approver's default number of workers.
	defaultReviewsAtOnce = 10
)

// allowed reports whether the requester of req has permission. In a controller no worker waits for the review, and
// equal questions share a review that is not sent yet. The answer is used only for the requests that asked.
func (r *Reconciler) allowed(
	ctx context.Context, req *csr.Request, permission authorizationv1.ResourceAttributes,
) (bool, error) {
	reviews, found := r.reviews[permission]
	if !found {
		return r.Authorizer.Allowed(ctx, req.Requester, permission)
	}
	return reviews.Answer(pending.Question[bool]{
		Request: req.Name, UID: req.UID, Requester: pending.DigestOf(req.Requester.Username),
		Text: reviewText(req.Requester),
		Ask: func(ctx context.Context) (bool, error) {
			return r.Authorizer.Allowed(ctx, req.Requester, permission)
		},
	})
}

// reviewText returns a text that differs for any two requesters that an authorizer could distinguish. %#v quotes every
// string and sorts every map.
func reviewText(requester csr.Requester) string { return fmt.Sprintf("%#v", requester) }

// readTimeout bounds the read after a write without a certain answer.
const readTimeout = 10 * time.Second

// outcome is a decision and the condition in which it is written.
type outcome struct {
	req      *csr.Request
	decision Decision
	kind     certificatesv1.RequestConditionType
}

func (o outcome) in(obj *certificatesv1.CertificateSigningRequest) bool {
	return csr.HasCondition(obj, o.kind, o.decision.Reason, o.decision.Message)
}

// landed reports whether the API server holds the decision, though its write failed with err. A conflict does not
// prove that nothing was stored: the client repeats a write after a 5xx, and the first write may have been stored.
// NotFound does not prove that the request is gone: a proxy may have answered. landed returns an error if the decision
// may still be stored later.
func (r *Reconciler) landed(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, about outcome, err error,
) (bool, error) {
	if apierrors.IsInvalid(err) || apicall.NotTried(err) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	stored := &certificatesv1.CertificateSigningRequest{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(obj), stored); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if stored.ResourceVersion == obj.ResourceVersion {
		return false, errors.New("the request has not changed") // no watch event will follow
	}
	return stored.UID == obj.UID && about.in(stored), nil
}

// unwritten handles a decision whose write failed with err and that is not known to be stored.
func (r *Reconciler) unwritten(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, about outcome, err, unsettled error,
) (reconcile.Result, error) {
	if about.decision.Verdict == verdict.Approve {
		r.limiter.giveBack(about.req)
	}
	if unsettled == nil && apierrors.IsConflict(err) {
		return reconcile.Result{}, nil // the watch brings the change
	}
	if apierrors.IsInvalid(err) { // a retry is useless until the object changes
		return r.refuse(ctx, obj, about.req, Decision{Result: verdict.Deny.Because("Malformed",
			"the API server rejects the approval of this request as invalid: %v; a new request is needed", err)}), nil
	}
	r.written.Keep(obj, about)
	return reconcile.Result{}, fmt.Errorf("update approval: %w", err)
}

// settle records a decision that is stored although its write had no certain answer.
func (r *Reconciler) settle(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) {
	about, ok := r.written.Of(obj)
	r.written.Drop(obj.Name)
	if !ok || !about.in(obj) {
		return
	}
	if about.decision.Verdict == verdict.Approve {
		r.limiter.take(about.req) // unwritten gave it back
	}
	r.decided(ctx, obj, about)
}

// decided reports a stored decision.
func (r *Reconciler) decided(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, about outcome) {
	r.written.Drop(obj.Name)
	if about.decision.Verdict == verdict.Approve {
		r.paces.approved(obj)
	}
	if about.decision.Verdict == verdict.Deny {
		r.Reporter.Request(obj, obj.Spec.Username, "Approve", about.decision.Reason, about.decision.Message)
	} else {
		age := r.serverTime().Since(obj.CreationTimestamp.Time)
		createdToApproved.WithLabelValues(obj.Spec.SignerName).Observe(age.Seconds())
	}
	r.record(ctx, obj, about.req, about.decision)
}
