// Package approver approves CertificateSigningRequests. One Judge for each signer decides, by the packages below pkg/judge and
// by facts that it reads. The approver writes one condition. It signs and deletes nothing.
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
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	// Judges judge requests, by signer. Requests for other signers are not changed and cost no API call.
	Judges map[string]Judge
	// Readers is what Judges read with.
	Readers
	// Denial defaults to DenialNever.
	Denial Denial

	// RequestLimits bounds what is read of a request. A larger request is ignored, or denied with DenialPermanent.
	RequestLimits csr.Limits

	// DryRun writes to no request. It reports each decision, also about requests that another approver has decided.
	DryRun bool

	// BlockList, if set, names the nodes and the certificates for which nothing is approved. The caller runs it.
	BlockList *blocklist.List
	// Limit bounds the approvals of each requester for each node.
	Limit Limit
	// Workers is the number of requests in progress at a time; zero means 50. The questions to a slow source of the
	// inventory get a share of them.
	Workers int

	Client client.Client
	// Recorder records Events about requests.
	Recorder events.EventRecorder
	// Clock is the clock of pauses and audit records. If it is a clock.WithTicker, the delays of the queue follow it.
	Clock clock.PassiveClock
	// Audit, if set, receives a record of each decision that is written, and of each decision of a dry run.
	Audit *audit.Log

	reporter *report.Reporter
	waiting  fairqueue.Index // undecided requests, for wake-ups
	attempts sync.Map        // attempts by UID of the request, until the watch shows a decision
	limiter  *limiter
}

// attempt is what is known of the last write about a request.
type attempt int

const (
	// inFlightOrStored means that a decision is being written, or is stored. Another attempt has nothing to do.
	inFlightOrStored attempt = iota + 1
	// mayBeStored means that an approval may be stored. It has its place in approval.limit.
	mayBeStored
)

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/approval,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client-kubelet,verbs=approve
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager sets nil fields and registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	r.Client, r.Live = cmp.Or(r.Client, mgr.GetClient()), cmp.Or(r.Live, mgr.GetAPIReader())
	r.Clock = cmp.Or[clock.PassiveClock](r.Clock, clock.RealClock{})
	r.ServerTime = cmp.Or(r.ServerTime, servertime.Of(r.Clock))
	r.Authorizer = cmp.Or[authz.Authorizer](r.Authorizer, &authz.Shared{Authorizer: measured{authz.SubjectAccess{Client: r.Client}}})
	r.Recorder = cmp.Or[events.EventRecorder](r.Recorder, mgr.GetEventRecorder(Name))
	r.reporter = report.New(r.Recorder, r.Clock)
	r.Denial, r.Workers = cmp.Or(r.Denial, DenialNever), cmp.Or(r.Workers, call.ApproverWorkers)
	r.limiter = newLimiter(r.Limit, r.Clock)
	if err := r.check(); err != nil {
		return err
	}
	for name := range r.Judges { // a histogram needs to exist before its first event, for its rate
		createdToApproved.WithLabelValues(name)
	}
	approving, err := fairqueue.NewController(mgr, Name, r.Workers, r.Clock, r.reconcile)
	if err != nil {
		return fmt.Errorf("make controller: %w", err)
	}
	wake := newWakeUps()
	errs := []error{
		approving.Watch(source.TypedKind(mgr.GetCache(), &certificatesv1.CertificateSigningRequest{}, fairqueue.Events(r.enqueue, r.forget))),
		approving.Watch(fairqueue.Wake(wake.changed, nil, func() []fairqueue.Key { return r.waiting.Marked(mostWoken, wake.take()) })),
	}
	if r.BlockList != nil {
		// The block list changes rarely, so all undecided requests are judged again.
		errs = append(errs, approving.Watch(fairqueue.Wake(r.BlockList.Subscribe(), r.BlockList.WaitForFirst, r.waiting.All)))
	}
	if r.Inventory != nil {
		errs = append(errs, r.Inventory.setup(mgr, r.Judges, r.Workers, r.Clock, r.BlockList.BlocksNode, wake.inventory))
	}
	return errors.Join(errs...)
}

// check returns all errors in fields without a default.
func (r *Reconciler) check() error {
	var errs []error
	if r.Denial != DenialNever && r.Denial != DenialPermanent {
		errs = append(errs, fmt.Errorf("denial %q is invalid: set it to %s or %s", r.Denial, DenialNever, DenialPermanent))
	}
	for name, each := range r.Judges {
		if services, leases := needs(each); (services || leases) && r.Inventory == nil {
			errs = append(errs, fmt.Errorf("the Judge for signer %q needs an Inventory: set it", name))
		}
		if each == nil {
			errs = append(errs, fmt.Errorf("signer %q has no Judge: set it", name))
		}
	}
	return errors.Join(errs...)
}

type workQueue = workqueue.TypedRateLimitingInterface[fairqueue.Key]

// enqueue enqueues obj if reconcile has something to do.
func (r *Reconciler) enqueue(obj *certificatesv1.CertificateSigningRequest, queue workQueue) {
	of := r.judgeOf(r.asCreated(obj))
	if of == nil {
		r.waiting.Remove(obj.Name)
		r.attempts.Delete(obj.UID)
		return
	}
	req, err := r.RequestLimits.Parse(obj)
	if err != nil {
		// It is wrong, which reconcile reports, or too large for the cache. A kubelet's user has the name of its Node, which wakes it.
		// The names and addresses that it asks for do not.
		req = &csr.Request{}
		req.Cert.Subject.CommonName = obj.Spec.Username
	}
	key := fairqueue.KeyOf(obj, req.NodeName())
	r.waiting.Put(key, marksOf(of, req)...)
	queue.Add(key)
}

// forget forgets obj, which was deleted.
func (r *Reconciler) forget(obj *certificatesv1.CertificateSigningRequest) {
	r.waiting.Remove(obj.Name)
	r.attempts.Delete(obj.UID)
	r.reporter.Forget(obj)
}

// reconcile decides about a request and writes at most one condition.
//
//  1. The request is still the one in the queue, and undecided.
//  2. It is parsed, within the limits.
//  3. The block list does not name it.
//  4. The Judge of its signer decides (Decide).
//  5. Of an approval: the block list once more, and approval.limit (act).
//  6. An approval, and a permitted denial, is written. Any other decision is reported (write, reportAndRequeue).
func (r *Reconciler) reconcile(ctx context.Context, key fairqueue.Key) (_ reconcile.Result, err error) {
	defer func() {
		if err != nil {
			errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
		}
	}()
	obj := &certificatesv1.CertificateSigningRequest{}
	// This is the cache's own object: a Judge only reads it, and write changes a copy.
	if err := r.Client.Get(ctx, types.NamespacedName{Name: key.Name}, obj, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // it is gone: nothing follows
	}
	// It is another request of the same name, or the cache does not show our decision yet.
	if last, _ := r.attempts.Load(obj.UID); obj.UID != key.UID || last == inFlightOrStored {
		return reconcile.Result{}, nil // the watch brings the change
	}
	if csr.Large(obj) {
		if obj, err = call.Whole(ctx, r.Live, obj); obj == nil {
			return reconcile.Result{}, err // a watch brings a change
		}
	}
	obj = r.asCreated(obj)
	req, decision, err := r.Decide(ctx, obj)
	if err != nil {
		return reconcile.Result{}, err // the queue retries, with back-off
	}
	return r.act(ctx, obj, req, decision)
}

// decidedFor is how long after its creation a dry run judges a request that another approver has decided. Later the
// facts about its node are no longer those of the decision.
const decidedFor = time.Minute

// asCreated returns obj. In a dry run, it returns obj without what another approver has decided a moment ago.
func (r *Reconciler) asCreated(obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	if !r.DryRun || csr.Undecided(obj) || r.age(obj) > decidedFor {
		return obj
	}
	created := *obj
	created.Status = certificatesv1.CertificateSigningRequestStatus{}
	return &created
}

// judgeOf returns the Judge of obj, or nil if its signer has none, or if obj is decided, being deleted or trimmed.
func (r *Reconciler) judgeOf(obj *certificatesv1.CertificateSigningRequest) Judge {
	if csr.Trimmed(obj) || !csr.Undecided(obj) || obj.DeletionTimestamp != nil {
		return nil
	}
	return r.Judges[obj.Spec.SignerName]
}

// Decide returns what reconcile would decide about obj, and writes nothing. The request is nil if it cannot be parsed.
// If obj has no Judge or is decided, the Decision is zero. The message is ASCII, because kubectl prints conditions.
func (r *Reconciler) Decide(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest,
) (req *csr.Request, decision judge.Decision, err error) {
	of := r.judgeOf(obj)
	if of == nil {
		return nil, judge.Decision{}, nil
	}
	req, err = r.RequestLimits.Parse(obj)
	if err != nil {
		req, decision, err = nil, unread(obj, err), nil
		if _, rules := of.(*ApprovalRules); rules && decision.Verdict == judge.Deny { // approval rules never deny
			decision.Verdict = judge.Ignore
		}
	} else if decision = r.BlockList.Check(req); !decision.Made() {
		decision, err = of.Judge(ctx, req, r.Readers)
		if err == nil && ctx.Err() != nil { // a lookup may have ended without an answer
			return req, judge.Decision{}, context.Cause(ctx) // the queue retries
		}
	}
	decision.Message = ascii.Quote(decision.Message)
	return req, decision, err
}

// unread returns the Decision about obj, for which csr.Limits.Parse returned err.
func unread(obj *certificatesv1.CertificateSigningRequest, err error) judge.Decision {
	refused := (*csr.Refused)(nil)
	if !errors.As(err, &refused) {
		return judge.Wait.Because("InternalError", "%s", csr.Fault(err))
	}
	advice := "a new request is needed"
	switch {
	case !csr.Reachable(obj):
		advice += ", with a shorter name; this one is too long for a URL, so only a deletion of all requests for the signer deletes it"
	case len(obj.Name) > csr.MaxName:
		advice += ", with a shorter name"
	case refused.Reason == csr.ReasonTooLarge:
		advice += ", or a higher limit"
	}
	return judge.Deny.Because(refused.Reason, "%s; %s", refused.Message, advice)
}

// act writes the decision if it is an Approve, or a Deny that the configuration permits. It reports any other, and every
// decision of a dry run.
func (r *Reconciler) act(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision judge.Decision,
) (reconcile.Result, error) {
	if decision.Verdict == judge.Deny && (r.Denial != DenialPermanent || !csr.Reachable(obj)) {
		decision.Verdict = judge.Ignore
	}
	switch {
	case r.DryRun:
		return r.reportAndRequeue(ctx, obj, req, decision), nil // judged again after a pause
	case decision.Verdict == judge.Deny:
		return r.write(ctx, obj, req, decision, certificatesv1.CertificateDenied) // done, once stored
	case decision.Verdict != judge.Approve:
		return r.reportAndRequeue(ctx, obj, req, decision), nil // judged again after a pause
	}
	if blocked := r.BlockList.Check(req); blocked.Made() { // the block list may have changed while the Judge read facts
		return r.reportAndRequeue(ctx, obj, req, blocked), nil // a change of the list wakes it
	}
	if _, holds := r.attempts.Load(obj.UID); !holds { // an earlier approval that may be stored has its place in the limit
		if limited := r.limiter.reserve(req); limited.Made() {
			return r.reportAndRequeue(ctx, obj, req, limited), nil // judged again after a pause
		}
	}
	return r.write(ctx, obj, req, decision, certificatesv1.CertificateApproved) // done, once stored
}

// write stores the decision as a condition of that kind, in the version of obj that was judged. The record is written
// first, so no approval exists without a record.
func (r *Reconciler) write(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision judge.Decision,
	kind certificatesv1.RequestConditionType,
) (reconcile.Result, error) {
	record := recordOf(obj, req, decision)
	r.Audit.Write(ctx, r.Clock.Now(), audit.Decided, record)
	r.attempts.Store(obj.UID, inFlightOrStored) // a wake before the watch shows the decision does nothing
	approval := kind == certificatesv1.CertificateApproved
	result := call.Store(ctx, r.Live, r.Client.SubResource("approval"), obj, func(written *certificatesv1.CertificateSigningRequest) {
		csr.AddCondition(written, kind, decision.Reason, decision.Message, time.Time{})
	})
	switch {
	case result.Outcome == audit.Stored:
		count(obj, decision)
		if approval {
			createdToApproved.WithLabelValues(obj.Spec.SignerName).Observe(r.age(obj).Seconds())
		} else {
			r.reporter.Request(obj, "Approve", decision.Reason, decision.Message)
		}
		return reconcile.Result{}, nil // done
	case result.Outcome == audit.Uncertain && approval && !result.Changed: // it keeps its place in approval.limit
		r.attempts.CompareAndSwap(obj.UID, inFlightOrStored, mayBeStored) // unless it was deleted meanwhile
	default: // certainly not stored, or a denial, or about a request that is gone
		r.attempts.Delete(obj.UID)
		if approval && result.Outcome != audit.Uncertain {
			r.limiter.giveBack(req)
		}
	}
	record.Message = result.Err.Error()
	r.Audit.Write(ctx, r.Clock.Now(), audit.NotStored, record)
	switch {
	case report.Refused(result.Err): // first, although the request may have changed: the fault concerns every request
		errorsTotal.WithLabelValues(report.ErrorReason(result.Err)).Inc()
		return r.reportAndRequeue(ctx, obj, req, judge.Wait.Because("NotStored",
			"the API server refuses to store the verdict %s about this request: %v; correct the role or the admission policy, "+
				"and the request is checked again within five minutes", decision.Verdict, result.Err)), nil // judged again after a pause
	case result.Changed:
		return reconcile.Result{}, nil // the watch brings the change
	default:
		return reconcile.Result{}, fmt.Errorf("update approval: %w", result.Err) // the queue retries, with back-off
	}
}

// pendingAfter is the age from which a request reports that its inventory has no answer yet. Most answers take less.
const pendingAfter = 10 * time.Second

// reportAndRequeue reports why obj is not decided, or in a dry run how it would be decided. It returns when to judge obj again.
func (r *Reconciler) reportAndRequeue(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision judge.Decision,
) reconcile.Result {
	age, pending := r.age(obj), decision.Reason == reasonPending
	if !decision.Made() {
		return reconcile.Result{} // it is left to others
	}
	if !pending || age >= pendingAfter {
		r.report(ctx, obj, req, decision)
	}
	switch {
	case pending: // With equal pauses, all requests would ask a busy source at one moment, and its places would be idle between.
		const least, first, most = 100 * time.Millisecond, time.Second, 30 * time.Second
		pause := wait.Jitter(least, float64(min(first+max(0, age/8), most))/float64(least))
		return reconcile.Result{RequeueAfter: pause} // the inventory is asked again
	case decision.Verdict == judge.Wait:
		return reconcile.Result{RequeueAfter: csr.Pause(age)} // 1 s, doubling to 5 min
	default:
		return reconcile.Result{RequeueAfter: report.Again} // only to repeat the Event
	}
}

// report reports a decision that is not written as Event, metric and log line, each distinct decision once. Only a dry run
// also records it.
func (r *Reconciler) report(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision judge.Decision,
) {
	if !r.DryRun {
		if r.reporter.Request(obj, "Approve", decision.Reason, decision.Message) {
			count(obj, decision)
			recordOf(obj, req, decision).Log(ctx, audit.Decided)
		}
		return
	}
	would, write := "Would"+decision.Verdict.String(), r.reporter.Request
	if decision.Verdict == judge.Approve {
		write = r.reporter.Would
	}
	if write(obj, "Approve", would, fmt.Sprintf("%s: %s", decision.Reason, decision.Message)) {
		dryRunTotal.WithLabelValues(obj.Spec.SignerName, decision.Verdict.String(), decision.Reason).Inc()
		record := recordOf(obj, req, decision)
		record.Verdict = would
		r.Audit.Write(ctx, r.Clock.Now(), audit.Decided, record)
	}
}

// age returns the age of obj, for pauses and metrics. A Judge that decides by age asks ServerTime itself.
func (r *Reconciler) age(obj *certificatesv1.CertificateSigningRequest) time.Duration {
	return r.ServerTime.Latest().Sub(obj.CreationTimestamp.Time)
}

func count(obj *certificatesv1.CertificateSigningRequest, decision judge.Decision) {
	decisionsTotal.WithLabelValues(obj.Spec.SignerName, decision.By, decision.Verdict.String(), decision.Reason).Inc()
}

// recordOf returns the record of a decision about obj.
func recordOf(obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision judge.Decision) audit.Record {
	record := audit.Of(obj, req)
	record.Verdict, record.Rule, record.Reason, record.Message = decision.Verdict.String(), decision.By, decision.Reason, decision.Message
	return record
}
