// Package approver approves CertificateSigningRequests. It decides by pure rules and by one SubjectAccessReview per
// recogniser, and writes one condition. It signs and deletes nothing.
package approver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
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

	// DryRun writes to no request. It reports each decision, also about requests that another approver has decided.
	DryRun bool

	// Assume takes for true what only a cluster knows about approval rules: that ServiceAccounts and Services exist, and that
	// API servers do not trust a CA of this manager.
	Assume bool

	// Inventory, if set, runs with the controller. Rules read it.
	Inventory *Inventory
	// BlockList, if set, names the nodes and the certificates for which nothing is approved. The caller runs it.
	BlockList *blocklist.List
	// Limit bounds the approvals of each requester for each node.
	Limit Limit
	// Workers is the number of requests in progress at a time; zero means DefaultWorkers. The questions to a slow source
	// of the inventory get a share of them.
	Workers int

	Client     client.Client
	Authorizer authz.Authorizer
	Reporter   *report.Reporter
	Clock      clock.PassiveClock
	// ServerTime is the clock by which ages count; nil means Clock.
	ServerTime *servertime.Clock
	// Audit, if set, receives a record of each decision, beside the log.
	Audit *audit.Log
	// Live reads past the cache. After a failed write, it shows whether the write was stored.
	Live client.Reader

	waiting fairqueue.Index // undecided requests, for wake-ups
	written sync.Map        // outcomes of writes by UID of the request, until the watch shows a decision
	limiter *limiter
}

// DefaultWorkers is more than kube-controller-manager's five workers, because most of the time a worker waits for the
// API server.
const DefaultWorkers = 50

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/approval,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client-kubelet,verbs=approve
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager sets nil fields and registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.TypedOptions[fairqueue.Key]) error {
	r.fill(mgr)
	if err := r.check(); err != nil {
		return err
	}
	for _, rule := range r.Rules { // a histogram needs to exist before its first event, for its rate
		createdToApproved.WithLabelValues(rule.SignerName)
	}
	options.Reconciler = r
	options.LogConstructor = fairqueue.LogConstructor(mgr.GetLogger(), Name)
	approving, err := controller.NewTyped(Name, mgr, options)
	if err != nil {
		return fmt.Errorf("make controller: %w", err)
	}
	wake := newWakeUps()
	errs := []error{
		approving.Watch(source.TypedKind(mgr.GetCache(), &certificatesv1.CertificateSigningRequest{}, fairqueue.Events(r.observe, r.forget))),
		approving.Watch(fairqueue.Wake(wake.changed, nil, func() []fairqueue.Key { return r.waiting.Marked(mostWoken, wake.take()) })),
	}
	if r.BlockList != nil {
		// The block list changes rarely, so all undecided requests are judged again.
		errs = append(errs, approving.Watch(fairqueue.Wake(r.BlockList.Subscribe(), r.BlockList.WaitForFirst, r.waiting.All)))
	}
	if r.Inventory != nil {
		errs = append(errs, r.Inventory.setup(mgr, r.Rules, r.Workers, r.Clock, r.ServerTime, r.BlockList.BlocksNode, wake.inventory))
	}
	return errors.Join(errs...)
}

// fill sets nil fields.
func (r *Reconciler) fill(mgr manager.Manager) {
	r.Client, r.Live = cmp.Or(r.Client, mgr.GetClient()), cmp.Or(r.Live, mgr.GetAPIReader())
	r.Clock = cmp.Or[clock.PassiveClock](r.Clock, clock.RealClock{})
	r.ServerTime = cmp.Or(r.ServerTime, servertime.Of(r.Clock))
	r.Authorizer = cmp.Or[authz.Authorizer](r.Authorizer, &authz.Shared{Authorizer: measured{authz.SubjectAccess{Client: r.Client}}})
	r.Reporter = cmp.Or(r.Reporter, report.New(mgr.GetEventRecorder(Name), r.Clock))
	r.Denial, r.Workers = cmp.Or(r.Denial, DenialNever), cmp.Or(r.Workers, DefaultWorkers)
	r.limiter = newLimiter(r.Limit, r.Clock)
}

// check returns all errors in fields without a default.
func (r *Reconciler) check() error {
	var errs []error
	if r.Denial != DenialNever && r.Denial != DenialPermanent {
		errs = append(errs, fmt.Errorf("denial %q is invalid: set it to %s or %s", r.Denial, DenialNever, DenialPermanent))
	}
	for _, rule := range r.Rules {
		if rule.Shape == nil && rule.Judge == nil && rule.Policy == nil {
			errs = append(errs, fmt.Errorf("the rule for signer %q has no Shape: set Shape, Judge or Policy", rule.SignerName))
		}
		for _, recogniser := range rule.Recognisers {
			if recogniser.Matches == nil {
				errs = append(errs, fmt.Errorf("recogniser %q of the rule for signer %q has no Matches: set it",
					recogniser.Name, rule.SignerName))
			}
		}
	}
	return errors.Join(errs...)
}

type workQueue = workqueue.TypedRateLimitingInterface[fairqueue.Key]

// observe enqueues obj if Reconcile has something to do.
func (r *Reconciler) observe(obj *certificatesv1.CertificateSigningRequest, queue workQueue) {
	rule := r.rule(r.judged(obj))
	if rule == nil {
		r.waiting.Remove(obj.Name)
		r.written.Delete(obj.UID)
		return
	}
	node, marks := "", []uint64(nil)
	if req, err := r.RequestLimits.Parse(obj); err == nil {
		node, marks = req.NodeName(), rule.marksOf(req)
	}
	key := fairqueue.KeyOf(obj, node)
	r.waiting.Put(key, marks...)
	queue.Add(key)
}

// forget forgets obj, which was deleted.
func (r *Reconciler) forget(obj *certificatesv1.CertificateSigningRequest) {
	r.waiting.Remove(obj.Name)
	r.written.Delete(obj.UID)
	r.Reporter.Forget(obj)
}

// Reconcile decides about a request and writes at most one condition. An error goes to the work queue, which retries.
func (r *Reconciler) Reconcile(ctx context.Context, key fairqueue.Key) (_ reconcile.Result, err error) {
	defer func() {
		if err != nil {
			errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
		}
	}()
	obj := &certificatesv1.CertificateSigningRequest{}
	// This is the cache's own object: judging only reads it, and write changes a copy.
	if err := r.Client.Get(ctx, types.NamespacedName{Name: key.Name}, obj, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	// It is another request of the same name, or the cache does not show our decision yet.
	if written, _ := r.written.Load(obj.UID); obj.UID != key.UID || written == audit.Stored {
		return reconcile.Result{}, nil
	}
	obj = r.judged(obj)
	req, decision, err := r.Decide(ctx, obj)
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.act(ctx, obj, req, decision)
}

// decidedFor is how long after its creation a dry run judges a request that another approver has decided. Later the
// facts about its node are no longer those of the decision.
const decidedFor = time.Minute

// judged returns what is judged of obj. In a dry run, that is obj without what another approver has decided a moment ago.
func (r *Reconciler) judged(obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	if !r.DryRun || csr.Undecided(obj) || r.age(obj) > decidedFor {
		return obj
	}
	created := *obj
	created.Status = certificatesv1.CertificateSigningRequestStatus{}
	return &created
}

// rule returns the rule for obj, or nil if obj has no rule, is decided, is being deleted or is trimmed.
func (r *Reconciler) rule(obj *certificatesv1.CertificateSigningRequest) *Rule {
	if csr.Trimmed(obj) || !csr.Undecided(obj) || obj.DeletionTimestamp != nil {
		return nil
	}
	for i := range r.Rules {
		if r.Rules[i].SignerName == obj.Spec.SignerName {
			return &r.Rules[i]
		}
	}
	return nil
}

// Decide returns what Reconcile would decide about obj, and writes nothing. The request is nil if it cannot be parsed.
// If obj has no rule or is decided, the Decision is zero. The message is ASCII, because kubectl prints conditions.
func (r *Reconciler) Decide(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest,
) (*csr.Request, judge.Decision, error) {
	rule := r.rule(obj)
	if rule == nil {
		return nil, judge.Decision{}, nil
	}
	req, err := r.RequestLimits.Parse(obj)
	if err != nil {
		decision := unread(err)
		if rule.Policy != nil && decision.Verdict == judge.Deny { // approval rules never deny
			decision.Verdict = judge.Ignore
		}
		decision.Message = ascii.Quote(decision.Message)
		return nil, decision, nil
	}
	decision := r.blocked(req)
	switch {
	case decision.Reason != "":
	case rule.Policy != nil:
		decision, err = r.judgeByRules(ctx, req, rule.Policy)
	case rule.Judge != nil:
		decision, err = rule.Judge(ctx, req)
	default:
		decision, err = rule.decide(ctx, req, r.Authorizer)
	}
	if err == nil && ctx.Err() != nil { // a lookup may have ended without an answer
		return req, judge.Decision{}, context.Cause(ctx)
	}
	decision.Message = ascii.Quote(decision.Message)
	return req, decision, err
}

// blocked returns the Decision about a request for a blocked node, from a blocked node, or made with a blocked
// certificate. About any other request, the Decision has no reason.
func (r *Reconciler) blocked(req *csr.Request) judge.Decision {
	reason, message := r.BlockList.Check(req)
	return judge.Decision{Verdict: judge.Wait, Reason: reason, Message: message}
}

// act writes the decision if it is an Approve, or a Deny that the configuration permits. It reports any other, and every
// decision of a dry run.
func (r *Reconciler) act(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision judge.Decision,
) (reconcile.Result, error) {
	if decision.Verdict == judge.Deny && r.Denial != DenialPermanent {
		decision.Verdict = judge.Ignore
	}
	switch {
	case r.DryRun:
		return r.refuse(ctx, obj, req, decision), nil
	case decision.Verdict == judge.Deny:
		return r.write(ctx, obj, req, decision, certificatesv1.CertificateDenied)
	case decision.Verdict != judge.Approve:
		return r.refuse(ctx, obj, req, decision), nil
	}
	if blocked := r.blocked(req); blocked.Reason != "" { // the block list may have changed while the rule asked
		return r.refuse(ctx, obj, req, blocked), nil
	}
	if _, holds := r.written.Load(obj.UID); !holds { // its last write may be stored
		if limited := r.limiter.reserve(req); limited.Reason != "" {
			return r.refuse(ctx, obj, req, limited), nil
		}
	}
	return r.write(ctx, obj, req, decision, certificatesv1.CertificateApproved)
}

// write stores the decision as a condition of that kind, in the version of obj that was judged. The record is written
// first, so no approval exists without a record.
func (r *Reconciler) write(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision judge.Decision,
	kind certificatesv1.RequestConditionType,
) (reconcile.Result, error) {
	r.record(ctx, obj, req, audit.Decided, decision.Verdict.String(), decision)
	written := obj.DeepCopy()
	csr.AddCondition(written, kind, decision.Reason, decision.Message, time.Time{})
	r.written.Store(obj.UID, audit.Stored) // before the watch can show it
	approval := kind == certificatesv1.CertificateApproved
	result := call.Store(ctx, r.Live, r.Client.SubResource("approval"), written)
	switch {
	case result.Outcome == audit.Stored:
		r.decided(obj, decision)
		return reconcile.Result{}, nil
	case result.Outcome == audit.Uncertain && approval: // it keeps its place in approval.limit
		r.written.CompareAndSwap(obj.UID, audit.Stored, audit.Uncertain) // unless it was deleted meanwhile
	default:
		r.written.Delete(obj.UID)
		if approval {
			r.limiter.giveBack(req)
		}
	}
	unstored := decision
	unstored.Message = result.Err.Error()
	r.record(ctx, obj, req, audit.NotStored, decision.Verdict.String(), unstored)
	switch {
	case report.Refused(result.Err): // an admission policy or a role may change
		errorsTotal.WithLabelValues(report.ErrorReason(result.Err)).Inc()
		return r.refuse(ctx, obj, req, judge.Wait.Because("NotStored",
			"the API server refuses to store the verdict %s about this request: %v; correct the role or the admission policy, "+
				"and the request is checked again within five minutes", decision.Verdict, result.Err)), nil
	case result.Changed: // the watch brings the change
		return reconcile.Result{}, nil
	default:
		return reconcile.Result{}, fmt.Errorf("update approval: %w", result.Err)
	}
}

// decided counts and reports a stored decision.
func (r *Reconciler) decided(obj *certificatesv1.CertificateSigningRequest, decision judge.Decision) {
	count(obj, decision)
	if decision.Verdict == judge.Deny {
		r.Reporter.Request(obj, obj.Spec.Username, "Approve", decision.Reason, decision.Message)
		return
	}
	createdToApproved.WithLabelValues(obj.Spec.SignerName).Observe(r.age(obj).Seconds())
}

const (
	// reasonPending is the reason of a request whose inventory has no answer yet.
	reasonPending = "InventoryPending"
	// pendingAfter is the age from which a request reports that its inventory has no answer yet. Most answers take less.
	pendingAfter = 10 * time.Second
)

// refuse reports why obj is not decided, or in a dry run how it would be decided. It returns when to judge obj again.
func (r *Reconciler) refuse(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision judge.Decision,
) reconcile.Result {
	age, pending := r.age(obj), decision.Reason == reasonPending
	switch {
	case decision.Reason == "":
		return reconcile.Result{}
	case !pending || age >= pendingAfter:
		r.report(ctx, obj, req, decision)
	}
	switch {
	case pending:
		return reconcile.Result{RequeueAfter: pendingPause(age)}
	case decision.Verdict == judge.Wait:
		return reconcile.Result{RequeueAfter: csr.Pause(age)}
	default:
		return reconcile.Result{RequeueAfter: report.Again}
	}
}

// pendingPause returns when a request of that age asks the inventory again. The pause is random, so that requests spread
// over time. With equal pauses, all requests would ask a busy source at one moment, and its places would be idle between.
func pendingPause(age time.Duration) time.Duration {
	const least, first, most = 100 * time.Millisecond, time.Second, 30 * time.Second
	return wait.Jitter(least, float64(min(first+max(0, age/8), most))/float64(least))
}

// report reports a decision that is not written as Event, metric and record, each distinct decision once.
func (r *Reconciler) report(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision judge.Decision,
) {
	if !r.DryRun {
		if r.Reporter.Request(obj, obj.Spec.Username, "Approve", decision.Reason, decision.Message) {
			count(obj, decision)
			r.record(ctx, obj, req, audit.Decided, decision.Verdict.String(), decision)
		}
		return
	}
	would, tell := "Would"+decision.Verdict.String(), r.Reporter.Request
	if decision.Verdict == judge.Approve {
		tell = r.Reporter.Would
	}
	if tell(obj, obj.Spec.Username, "Approve", would, fmt.Sprintf("%s: %s", decision.Reason, decision.Message)) {
		dryRunTotal.WithLabelValues(obj.Spec.SignerName, decision.Verdict.String(), decision.Reason).Inc()
		r.record(ctx, obj, req, audit.Decided, would, decision)
	}
}

// age returns the age of obj, for pauses and metrics. A rule that decides by age asks ServerTime itself.
func (r *Reconciler) age(obj *certificatesv1.CertificateSigningRequest) time.Duration {
	return r.ServerTime.Latest().Sub(obj.CreationTimestamp.Time)
}

func count(obj *certificatesv1.CertificateSigningRequest, decision judge.Decision) {
	decisionsTotal.WithLabelValues(obj.Spec.SignerName, decision.By, decision.Verdict.String(), decision.Reason).Inc()
}

// record writes decision to the audit log, with as for its verdict.
func (r *Reconciler) record(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, event audit.Event, as string,
	decision judge.Decision,
) {
	record := audit.Of(obj, req)
	record.Verdict, record.Rule, record.Reason, record.Message = as, decision.By, decision.Reason, decision.Message
	r.Audit.Write(ctx, r.Clock.Now(), event, record)
}
