// Package signer signs approved CertificateSigningRequests with a CA from a Secret or from files. It writes one
// certificate or one Failed condition. It approves and deletes nothing.
package signer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/apicall"
	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/internal/unanswered"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/requestcache"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-signer"

// maxObject bounds a request with its certificate, in bytes. It is etcd's default limit for a write
// (--max-request-bytes), less some room for what the API server adds. The API server drops managed fields that do not
// fit.
const maxObject = 1536<<10 - 4<<10

// Reconciler signs requests. SetupWithManager sets nil fields from the manager.
type Reconciler struct {
	// Signers says how to sign, by signer name. Requests for other signers are not changed.
	Signers map[string]Signer
	// Retention is the cleaner's retention. A request that is due for deletion is not signed, so a backlog of stale
	// approvals never becomes certificates.
	Retention csr.RetentionPolicy
	// RequestLimits bounds what is read of a request. A larger request is marked as Failed.
	RequestLimits csr.Limits
	// DryRun signs nothing and writes to no request. It reports the outcome that each request would have.
	DryRun bool
	// BlockList, if set, names the nodes and the certificates for which nothing is signed, even if a request is approved.
	// The caller runs it.
	BlockList *blocklist.List

	Client client.Client
	// Live reads past the cache. After a write without an answer, it shows whether the write was stored.
	Live client.Reader
	// Requests holds parsed requests, and whole requests if the cache of Client strips them.
	Requests *requestcache.Cache
	Reporter *report.Reporter
	Clock    clock.PassiveClock
	// ServerTime is the clock by which ages count; nil means Clock. Certificates are issued by Clock, and only while both
	// clocks agree.
	ServerTime *servertime.Clock
	// APIServers lists the API servers to ask whether they trust a CA for clients: host:port or an https URL each. If it
	// is empty, all endpoints of the Service kubernetes are asked.
	APIServers []string
	// OthersActive, if set, reports whether other replicas of this manager may sign, or may have signed a moment ago.
	OthersActive func() bool
	// Audit, if set, receives a record of each outcome, beside the log.
	Audit *audit.Log

	pending      pending.Index // requests that wait for a certificate
	dryRunBegan  sync.Once
	dryRunStart  time.Time // in whole seconds, like times in the API
	certificates certificates
	ahead        ahead // newer than the cache
	trust        trustCache

	issued   unanswered.Writes[*issuance]   // issued certificates whose write had no certain answer
	ended    unanswered.Writes[string]      // requests that get no further certificate, by versionOf
	failures unanswered.Writes[Judgement]   // Failed conditions whose write had no certain answer
	gone     unanswered.Writes[goneRequest] // deleted requests with a write in issued, or one that may get there
}

// Judgement is the signer's decision about an approved request. Approve signs it with Authority, Deny marks it as
// Failed, and Wait judges it again later. Ignore neither signs nor marks it.
type Judgement struct {
	verdict.Result
	Request   *csr.Request // nil if it cannot be parsed
	Authority *ca.Authority
	// LifetimeCap, if not zero, bounds the lifetime of the certificate, beside the profile.
	LifetimeCap time.Duration
	// IfTrusted is set while it is unknown whether API servers trust the CA for clients. It says why the request is
	// refused if they do.
	IfTrusted *ca.Violation
}

// Outcome returns the name of the verdict for metrics, audit records and explain.
func (j Judgement) Outcome() string {
	switch j.Verdict {
	case verdict.Approve:
		return "Issued"
	case verdict.Deny:
		return "Failed"
	default:
		return j.Verdict.String()
	}
}

// Reconcile signs a request, marks it as Failed, or reports why it waits.
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
	cached, err := r.cached(ctx, key)
	if cached == nil {
		return reconcile.Result{}, err
	}
	if _, err := r.ServerTime.Skew(); err != nil { // with a skewed clock a fresh approval could look too old
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	now := r.Clock.Now()
	obj, err := r.whole(ctx, cached)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.DryRun {
		return r.dryRun(ctx, obj, now), nil
	}
	r.settle(ctx, obj)
	if !r.signable(obj) {
		return reconcile.Result{}, r.reportForeign(ctx, obj)
	}
	judged, err := r.judge(ctx, obj, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	if judged.Authority != nil {
		// Certificates have whole seconds. The same instant in the record explains the certificate's times.
		return reconcile.Result{}, r.sign(ctx, obj, judged, now.Truncate(time.Second))
	}
	r.giveUp(ctx, obj)
	if judged.Verdict == verdict.Deny {
		return reconcile.Result{}, r.fail(ctx, obj.DeepCopy(), judged)
	}
	r.report(ctx, obj, judged)
	result := r.requeue(obj, judged)
	result.RequeueAfter = r.Requests.Pause(cached, result.RequeueAfter)
	return result, nil
}

// cached returns the newest known version of a request, or nil if there is none. It is the cache's own object, or one that the approver
// shares. Judging only reads it, and writes use a copy.
func (r *Reconciler) cached(ctx context.Context, key reconcile.Request) (*certificatesv1.CertificateSigningRequest, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			r.ahead.drop(key.Name)
			r.forgetWrites(ctx, key.Name) // the deletion may have come before the failure of the write
		}
		return nil, client.IgnoreNotFound(err)
	}
	r.gone.Of(obj) // drops what is known of an earlier request of this name
	return r.ahead.of(obj), nil
}

// whole returns the whole object of cached if more than its state will be read: it waits for a certificate, an earlier
// write to it is not settled, or a dry run judges it.
func (r *Reconciler) whole(
	ctx context.Context, cached *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	_, issued := r.issued.Of(cached)
	_, failed := r.failures.Of(cached)
	if issued || failed || r.signable(cached) || r.DryRun && r.approved(cached) {
		return r.Requests.Whole(ctx, r.Live, cached)
	}
	return cached, nil
}

// requeue returns when to judge obj again. A new CA wakes the request at once; the requeue is the safety net.
func (r *Reconciler) requeue(obj *certificatesv1.CertificateSigningRequest, judged Judgement) reconcile.Result {
	if judged.Verdict != verdict.Wait {
		return reconcile.Result{}
	}
	low := handler.LowPriority
	return reconcile.Result{RequeueAfter: csr.Pause(r.ServerTime.Since(obj.CreationTimestamp.Time)), Priority: &low}
}

// signable reports whether obj waits for a certificate from one of Signers.
func (r *Reconciler) signable(obj *certificatesv1.CertificateSigningRequest) bool {
	_, ours := r.Signers[obj.Spec.SignerName]
	return ours && csr.StateOf(obj) == csr.Approved
}

// judge is Judge with a time that was measured after obj was stored, if obj seems to be too old.
func (r *Reconciler) judge(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time) (Judgement, error) {
	judged := r.Judge(obj, now)
	if judged.Reason != reasonTooOld {
		return judged, nil
	}
	if err := r.ServerTime.Refresh(ctx, obj.ResourceVersion); err != nil {
		return Judgement{}, err
	}
	return r.Judge(obj, now), nil
}

const reasonTooOld = "RequestTooOld"

// Judge decides about obj, an approved request for one of Signers, at now by Clock. It writes nothing.
func (r *Reconciler) Judge(obj *certificatesv1.CertificateSigningRequest, now time.Time) Judgement {
	skew, skewErr := r.ServerTime.Skew()
	if at, ok := r.Retention.Deadline(obj); ok && now.Add(-skew).After(at) && skewErr == nil {
		return Judgement{Result: verdict.Ignore.Because(reasonTooOld,
			"the request is approved, but due for deletion since %s and no longer signed; a new request is needed",
			at.UTC().Format(time.RFC3339))}
	}
	req, err := r.Requests.Parse(obj, r.RequestLimits)
	if refused := (*csr.Refused)(nil); errors.As(err, &refused) {
		return Judgement{Result: verdict.Result{Verdict: verdict.Deny, Reason: refused.Reason, Message: refused.Message}}
	} else if err != nil {
		return Judgement{Result: verdict.Wait.Because("InternalError", "%s", csr.Fault(err))}
	}
	if reason, message := r.BlockList.Check(req); reason != "" {
		// The request waits, because the node or the certificate may be removed from the list.
		return Judgement{Request: req, Result: verdict.Result{Verdict: verdict.Wait, Reason: reason, Message: message}}
	}
	signer := r.Signers[obj.Spec.SignerName]
	if violation := signer.check(req); violation != nil {
		return Judgement{Request: req, Result: deny(*violation)}
	}
	switch {
	case skewErr != nil:
		return Judgement{Request: req, Result: verdict.Wait.Because("ClockSkewed", "%v", skewErr)}
	case skew.Abs() > servertime.MaxSkew:
		return Judgement{Request: req, Result: verdict.Wait.Because("ClockSkewed", "%s", servertime.Sentence(skew))}
	}
	return r.judgeByCA(obj, req, signer, now)
}

// judgeByCA decides about a request that signer permits. The decision depends on the CA at now.
func (r *Reconciler) judgeByCA(
	obj *certificatesv1.CertificateSigningRequest, req *csr.Request, signer Signer, now time.Time,
) Judgement {
	authority, longest, err := signer.KeyPair.AuthorityFor(obj.Spec.SignerName, now)
	if err != nil {
		var why *keypair.Unavailable
		errors.As(err, &why)
		return Judgement{Request: req, Result: verdict.Result{Verdict: verdict.Wait, Reason: why.Reason,
			Message: why.Message}}
	}
	violation, unknown := signer.checkTrust(req, r.trust.of(signer.KeyPair, authority))
	switch {
	case unknown != "":
		return Judgement{Request: req, IfTrusted: violation, Result: verdict.Wait.Because("CATrustUnknown",
			"%s; if they do, the request is refused (%s: %s), otherwise it is signed",
			unknown, violation.Reason, violation.Message)}
	case violation != nil:
		return Judgement{Request: req, Result: deny(*violation)}
	}
	if size := obj.Size() + authority.LongestPEM(req.Cert); size > maxObject {
		return Judgement{Request: req, Result: verdict.Deny.Because(csr.ReasonTooLarge,
			"the request and its certificate need up to %d bytes, and the API server stores at most %d "+
				"in an object; make a request with fewer names, labels or annotations", size, maxObject)}
	}
	approve := verdict.Result{Verdict: verdict.Approve}
	return Judgement{Request: req, Result: approve, Authority: authority, LifetimeCap: longest}
}

// deny returns the verdict about a request that can never be signed.
func deny(why ca.Violation) verdict.Result {
	return verdict.Result{Verdict: verdict.Deny, Reason: why.Reason, Message: why.Message}
}

// fail marks obj as Failed, and reports why.
func (r *Reconciler) fail(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement) error {
	before := obj.ResourceVersion
	csr.AddCondition(obj, certificatesv1.CertificateFailed, judged.Reason, judged.Message, r.ServerTime.Now())
	// The API server refuses to update a request that only etcd can hold, for example without PKCS#10. Such a request is
	// reported, and the cleaner deletes it.
	if err := r.Client.Status().Update(ctx, obj, client.FieldOwner(FieldManager)); err != nil && !final(err) {
		stored, readErr := r.read(ctx, obj)
		if readErr != nil || !hasFailedAs(stored, obj.UID, judged) {
			r.failures.Keep(obj, judged) // the write may still be stored
			if readErr == nil && stored.ResourceVersion != before {
				return nil // the watch brings the change to the queue
			}
			return fmt.Errorf("update status: %w", err)
		}
	}
	r.wrote(ctx, before, obj)
	r.failed(ctx, obj, judged)
	return nil
}

func hasFailedAs(obj *certificatesv1.CertificateSigningRequest, uid types.UID, judged Judgement) bool {
	return obj.UID == uid && csr.HasCondition(obj, certificatesv1.CertificateFailed, judged.Reason, judged.Message)
}

// failed reports that obj is marked as Failed.
func (r *Reconciler) failed(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement) {
	r.failures.Drop(obj.Name)
	judged.Message = judged.Sentence(obj.Spec.SignerName)
	r.report(ctx, obj, judged)
}

// Sentence returns the note of the Event about a request for signerName. The Failed condition has only the Message,
// which is kube-controller-manager's text.
func (j Judgement) Sentence(signerName string) string {
	if j.Verdict != verdict.Deny {
		return j.Message
	}
	return fmt.Sprintf("signer %s refuses this request permanently: %s; a new request is needed", signerName, j.Message)
}

// report reports an outcome other than a certificate as Event, metric and record, each distinct outcome once.
func (r *Reconciler) report(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement) {
	if !r.Reporter.Request(obj, obj.Spec.Username, "Sign", judged.Reason, judged.Message) {
		return
	}
	outcomesTotal.WithLabelValues(obj.Spec.SignerName, judged.Outcome(), judged.Reason).Inc()
	record := audit.Of(obj, judged.Request)
	record.Verdict, record.Reason, record.Message = judged.Outcome(), judged.Reason, judged.Message
	r.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)
}

// approved reports whether obj is approved for one of Signers. It may be signed or failed already.
func (r *Reconciler) approved(obj *certificatesv1.CertificateSigningRequest) bool {
	_, ours := r.Signers[obj.Spec.SignerName]
	return ours && !csr.ApprovedAt(obj).IsZero()
}

// wouldReasons has the reason that a dry run reports for each verdict.
var wouldReasons = map[verdict.Verdict]string{
	verdict.Approve: "WouldIssue", verdict.Deny: "WouldFail", verdict.Wait: "WouldWait", verdict.Ignore: "WouldIgnore",
}

// dryRun reports, once, the outcome that obj would have, and signs nothing. It also judges requests that another signer
// has already signed or failed, because that signer is usually faster. It omits such a request if it was approved
// before the dry run began.
func (r *Reconciler) dryRun(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time,
) reconcile.Result {
	r.dryRunBegan.Do(func() { r.dryRunStart = r.ServerTime.Now().Truncate(time.Second) })
	waiting := r.signable(obj)
	if !waiting && (!r.approved(obj) || csr.StateOf(obj) == csr.Denied || csr.ApprovedAt(obj).Before(r.dryRunStart)) {
		return reconcile.Result{}
	}
	judged := r.Judge(obj, now)
	reportOnce := r.Reporter.Request
	message := fmt.Sprintf("%s: %s", judged.Reason, judged.Sentence(obj.Spec.SignerName))
	if judged.Authority != nil {
		reportOnce = r.Reporter.Would
		message = fmt.Sprintf("key %s would sign the request", judged.Authority.KeyID())
	}
	if would := wouldReasons[judged.Verdict]; reportOnce(obj, obj.Spec.Username, "Sign", would, message) {
		dryRunTotal.WithLabelValues(obj.Spec.SignerName, judged.Outcome(), judged.Reason).Inc()
		record := audit.Of(obj, judged.Request)
		record.Verdict, record.Reason, record.Message = would, judged.Reason, message
		r.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)
	}
	if !waiting {
		return reconcile.Result{}
	}
	return r.requeue(obj, judged)
}
