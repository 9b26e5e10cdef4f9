// Package signer signs approved CertificateSigningRequests with a CA from a Secret or from files, and writes one
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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-signer"

// maxObject bounds a request with its certificate, in bytes. It is the default limit of etcd for a write
// (--max-request-bytes), less some room for what the API server adds. The API server drops managed fields that do not
// fit.
const maxObject = 1536<<10 - 4<<10

// Reconciler signs requests. Fields left nil are filled in from the manager by SetupWithManager.
type Reconciler struct {
	// Signers say how to sign, by signer name. Requests of other signers are not touched.
	Signers map[string]Signer
	// Retention is the cleaner's. A request that is due for deletion is no longer signed, so that a backlog of stale
	// approvals never turns into certificates.
	Retention csr.RetentionPolicy
	// RequestLimits bound what is read of a request. A larger one is Failed.
	RequestLimits csr.Limits
	// DryRun signs nothing and writes to no request. It reports what would become of each request.
	DryRun bool
	// BlockList, if set, names the nodes for which nothing is signed, whoever approved. Its owner runs it.
	BlockList *blocklist.List

	Client client.Client
	// Live reads past the cache: after a write without an answer it says what became of it.
	Live     client.Reader
	Reporter *report.Reporter
	Clock    clock.PassiveClock
	// ServerTime is the time by which ages count; it is Clock's when nil. Certificates are issued by Clock, and only while
	// both agree.
	ServerTime *servertime.Clock
	// APIServers are asked whether they trust a CA for clients, host:port or https URL each. Empty is every endpoint of
	// the Service kubernetes.
	APIServers []string
	// Audit, if set, gets a record of each outcome, beside the log.
	Audit *audit.Log

	pending      pending.Index // requests that wait for a certificate
	dryRunBegan  sync.Once
	dryRunStart  time.Time // in whole seconds, as the API's times are
	certificates certificates
	trust        trustCache

	issued   unanswered.Writes[*issuance] // certificates that are not known to be stored
	ended    unanswered.Writes[string]    // requests for which no other certificate is made, by versionOf
	failures unanswered.Writes[Judgement] // requests that are not known to be marked as Failed
}

// Judgement is what the signer says of an approved request. Approve signs it with Authority, Deny marks it as Failed,
// Wait judges it again later, and Ignore neither signs it nor marks it.
type Judgement struct {
	verdict.Result
	Request   *csr.Request // nil when it can't be parsed
	Authority *ca.Authority
	// LifetimeCap, if not zero, is the longest lifetime of its certificates now, whatever the profile says.
	LifetimeCap time.Duration
	// IfTrusted is why it is refused if API servers turn out to trust the CA for clients, while that is unknown.
	IfTrusted *ca.Violation
}

// Outcome returns the name of the verdict in metrics, records and explain.
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

// Reconcile signs one request, or fails it, or says why it waits.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, key)
	if err != nil {
		errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
	}
	return apicall.Requeue(ctx, result, err)
}

func (r *Reconciler) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// The cache's own object: judging only reads, and what is written is a copy.
	if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if _, err := r.ServerTime.Skew(); err != nil { // a fresh approval could look too old
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	now := r.Clock.Now()
	if r.DryRun {
		return r.dryRun(ctx, obj, now), nil
	}
	r.settle(ctx, obj)
	if !r.signable(obj) {
		if judged, ok := r.failures.Of(obj); ok && hasFailedAs(obj, obj.UID, judged) {
			r.failed(ctx, obj, judged) // its write had no answer
		}
		return reconcile.Result{}, r.reportForeign(ctx, obj)
	}
	judged := r.Judge(obj, now)
	if judged.Authority != nil {
		// Whole seconds, as in a certificate: its own times show then how they came about.
		return reconcile.Result{}, r.sign(ctx, obj, judged, now.Truncate(time.Second))
	}
	r.giveUp(ctx, obj)
	if judged.Verdict == verdict.Deny {
		return reconcile.Result{}, r.fail(ctx, obj.DeepCopy(), judged)
	}
	r.report(ctx, obj, judged)
	return r.requeue(obj, judged), nil
}

// requeue returns when obj is judged again. A new CA wakes it at once; this is the safety net.
func (r *Reconciler) requeue(obj *certificatesv1.CertificateSigningRequest, judged Judgement) reconcile.Result {
	if judged.Verdict != verdict.Wait {
		return reconcile.Result{}
	}
	low := handler.LowPriority
	return reconcile.Result{RequeueAfter: csr.Pause(r.ServerTime.Since(obj.CreationTimestamp.Time)), Priority: &low}
}

// signable reports whether obj waits for a certificate of one of Signers.
func (r *Reconciler) signable(obj *certificatesv1.CertificateSigningRequest) bool {
	_, ours := r.Signers[obj.Spec.SignerName]
	return ours && csr.StateOf(obj) == csr.Approved
}

// Judge decides what is to become of obj, an approved request for one of Signers, at now by Clock. It writes nothing.
func (r *Reconciler) Judge(obj *certificatesv1.CertificateSigningRequest, now time.Time) Judgement {
	skew, skewErr := r.ServerTime.Skew()
	if at, ok := r.Retention.Deadline(obj); ok && now.Add(-skew).After(at) && skewErr == nil {
		return Judgement{Result: verdict.Ignore.Because("RequestTooOld",
			"approved, but due for deletion since %s: it is not signed any more; a new request is needed",
			at.UTC().Format(time.RFC3339))}
	}
	req, err := r.RequestLimits.Parse(obj)
	if refused := (*csr.Refused)(nil); errors.As(err, &refused) {
		return Judgement{Result: verdict.Result{Verdict: verdict.Deny, Reason: refused.Reason, Message: refused.Message}}
	} else if err != nil {
		return Judgement{Result: verdict.Wait.Because("InternalError", "%s", csr.Fault(err))}
	}
	if reason, message := r.BlockList.Check(req); reason != "" {
		// The node may be taken off the list.
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

// judgeByCA decides what is to become of a request that signer permits, by the CA as it is at now.
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
			"%s; if they do, the request is refused (%s: %s), else it is signed",
			unknown, violation.Reason, violation.Message)}
	case violation != nil:
		return Judgement{Request: req, Result: deny(*violation)}
	}
	if size := obj.Size() + authority.LongestPEM(req.Cert); size > maxObject {
		return Judgement{Request: req, Result: verdict.Deny.Because(csr.ReasonTooLarge,
			"the request and its certificate need up to %d bytes, and the API server stores at most %d "+
				"in an object; ask for fewer names, with fewer labels and annotations", size, maxObject)}
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
	csr.AddCondition(obj, certificatesv1.CertificateFailed, judged.Reason, judged.Message, r.ServerTime.Now())
	// The API server refuses to mark a request that only etcd can hold, such as one without PKCS#10. It is reported, and
	// left to the cleaner.
	if err := r.Client.Status().Update(ctx, obj, client.FieldOwner(FieldManager)); err != nil && !final(err) {
		stored, readErr := r.read(ctx, obj)
		if readErr != nil || !hasFailedAs(stored, obj.UID, judged) {
			r.failures.Keep(obj, judged) // it may be stored yet
			return ignoreChanged(err)
		}
	}
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

// Sentence returns the note of the Event about a request for signerName. The Failed condition has the Message alone,
// which is kube-controller-manager's.
func (j Judgement) Sentence(signerName string) string {
	if j.Verdict != verdict.Deny {
		return j.Message
	}
	return fmt.Sprintf("signer %s refuses this request for good: %s; a new request is needed", signerName, j.Message)
}

// report reports an outcome other than a certificate, once, as Event, metric and record.
func (r *Reconciler) report(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement) {
	if !r.Reporter.Request(obj, obj.Spec.Username, "Sign", judged.Reason, judged.Message) {
		return
	}
	outcomesTotal.WithLabelValues(obj.Spec.SignerName, judged.Outcome(), judged.Reason).Inc()
	record := audit.Of(obj, judged.Request)
	record.Verdict, record.Reason, record.Message = judged.Outcome(), judged.Reason, judged.Message
	r.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)
}

// ignoreChanged returns nil for a refused write that only means that the object has changed: the watch brings it.
func ignoreChanged(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("update status: %w", err)
}

// approved reports whether obj has been approved for one of Signers. It may have been signed or failed since.
func (r *Reconciler) approved(obj *certificatesv1.CertificateSigningRequest) bool {
	_, ours := r.Signers[obj.Spec.SignerName]
	return ours && !csr.ApprovedAt(obj).IsZero()
}

// wouldReasons has the reason of a dry run for each verdict.
var wouldReasons = map[verdict.Verdict]string{
	verdict.Approve: "WouldIssue", verdict.Deny: "WouldFail", verdict.Wait: "WouldWait", verdict.Ignore: "WouldIgnore",
}

// dryRun reports, once, what would become of obj, and signs nothing. It also judges a request that another signer,
// which is usually faster, has signed or failed, unless that was approved before the dry run began.
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
		message = fmt.Sprintf("key %s would sign it", judged.Authority.KeyID())
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
