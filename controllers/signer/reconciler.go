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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-signer"

// maxObject bounds a request with its certificate, in bytes. It is the default limit of etcd for a write (--max-request-bytes),
// less some room for what the API server adds. It drops managed fields where they take the room.
const maxObject = 1536<<10 - 4<<10

// The outcomes of a Judgement other than a certificate.
const (
	Failed = "Failed" // for good
	Wait   = "Wait"   // looked at again
	Ignore = "Ignore" // not signed for good, but not marked either
)

// Reconciler signs requests. Fields left nil are filled in from the manager by SetupWithManager.
type Reconciler struct {
	// Signers say how to sign, by signer name. Requests of other signers are not touched.
	Signers map[string]Signer
	// Retention is the cleaner's: what is due for deletion is no longer signed, so that a backlog of stale approvals
	// never turns into certificates.
	Retention csr.RetentionPolicy
	// RequestLimits bound what is read of a request. A larger one is Failed.
	RequestLimits csr.Limits
	// DryRun signs nothing and writes to no request: what would become of it is told.
	DryRun bool
	// BlockList, if set, names the nodes for which nothing is signed, whoever approved. Somebody else runs it.
	BlockList *inventory.BlockList

	Client client.Client
	// Live reads past the cache: after a write without an answer it says what became of it.
	Live     client.Reader
	Reporter *report.Reporter
	Clock    clock.PassiveClock
	// ServerTime, if set, is the time by which ages count; it is Clock's when nil. Certificates are issued by Clock, and only
	// while both agree.
	ServerTime *servertime.Clock
	// APIServers are those that are asked whether they trust a CA for clients, host:port or https URL each. Empty is every
	// endpoint of the Service kubernetes.
	APIServers []string
	// Audit, if set, gets a record of each outcome, beside the log.
	Audit *audit.Log

	started startedAt
	pending pending.Index // requests that wait for a certificate

	attempts unanswered.Writes[*attempt]  // to store a certificate
	ended    unanswered.Writes[string]    // requests for which no other certificate is made, by versionOf
	failures unanswered.Writes[Judgement] // to mark a request as Failed

	certificates certificates
	trust        trustCache
}

// Judgement is what is to become of an approved request: to be signed by Authority, or if that is nil, Outcome (Failed,
// Wait or Ignore) with a reason token of docs/reasons.md and a sentence.
type Judgement struct {
	Request   *csr.Request // nil when it can't be read
	Authority *ca.Authority
	// LifetimeCap, if not zero, is the longest that its certificates may live now, whatever the profile says.
	LifetimeCap time.Duration
	// IfTrusted is why it is refused if API servers turn out to trust the CA for clients, while that is unknown.
	IfTrusted *ca.Violation

	Outcome, Reason, Message string
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
	if _, err := r.serverTime().Skew(); err != nil { // a fresh approval could look too old
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	now := r.Clock.Now()
	if r.DryRun {
		return r.rehearse(ctx, obj, now), nil
	}
	r.settle(ctx, obj)
	if !r.signable(obj) {
		r.settleFailure(ctx, obj)
		return reconcile.Result{}, r.reportForeign(ctx, obj)
	}
	judged := r.Judge(obj, now)
	if judged.Authority == nil {
		r.giveUp(ctx, obj)
	}
	switch {
	case judged.Authority != nil:
		// Whole seconds, as a certificate has them: so its own times tell how it came to them.
		return reconcile.Result{}, r.sign(ctx, obj, judged, now.Truncate(time.Second))
	case judged.Outcome == Failed:
		return reconcile.Result{}, r.fail(ctx, obj.DeepCopy(), judged)
	case judged.Outcome == Wait:
		// A new CA wakes it at once; looking again is the safety net.
		r.tell(ctx, obj, judged)
		low := handler.LowPriority
		return reconcile.Result{RequeueAfter: csr.Pause(r.serverTime().Since(obj.CreationTimestamp.Time)), Priority: &low}, nil
	default:
		r.tell(ctx, obj, judged)
		return reconcile.Result{}, nil
	}
}

// signable says whether obj is one of ours that waits for a certificate.
func (r *Reconciler) signable(obj *certificatesv1.CertificateSigningRequest) bool {
	_, ours := r.Signers[obj.Spec.SignerName]
	return ours && csr.StateOf(obj) == csr.Approved
}

// serverTime returns the time by which ages count.
func (r *Reconciler) serverTime() *servertime.Clock {
	if r.ServerTime == nil {
		return servertime.Of(r.Clock)
	}
	return r.ServerTime
}

// Judge says what is to become of obj, an approved request for one of Signers, at now by Clock. It writes nothing.
func (r *Reconciler) Judge(obj *certificatesv1.CertificateSigningRequest, now time.Time) Judgement {
	skew, skewErr := r.serverTime().Skew()
	if at, ok := r.Retention.Deadline(obj); ok && now.Add(-skew).After(at) && skewErr == nil {
		return Judgement{Outcome: Ignore, Reason: "RequestTooOld",
			Message: fmt.Sprintf("approved, but due for deletion since %s: it is not signed any more; a new request is needed", at.UTC().Format(time.RFC3339))}
	}
	req, err := r.RequestLimits.Parse(obj)
	if err != nil {
		return unread(err)
	}
	if reason, message := r.BlockList.Check(req); reason != "" {
		return Judgement{Request: req, Outcome: Wait, Reason: reason, Message: message} // it may be taken off the list
	}
	signer := r.Signers[obj.Spec.SignerName]
	if violation := signer.check(req); violation != nil {
		return Judgement{Request: req, Outcome: Failed, Reason: violation.Reason, Message: violation.Message}
	}
	switch {
	case skewErr != nil:
		return Judgement{Request: req, Outcome: Wait, Reason: "ClockSkewed", Message: skewErr.Error()}
	case skew.Abs() > servertime.MaxSkew:
		return Judgement{Request: req, Outcome: Wait, Reason: "ClockSkewed", Message: servertime.Sentence(skew)}
	}
	return r.judgeByCA(obj, req, signer, now)
}

// judgeByCA says what the CA of signer, as it is at now, means for a request that signer permits.
func (r *Reconciler) judgeByCA(obj *certificatesv1.CertificateSigningRequest, req *csr.Request, signer Signer, now time.Time) Judgement {
	authority, longest, err := signer.KeyPair.AuthorityFor(obj.Spec.SignerName, now)
	if err != nil {
		var why *keypair.Unavailable
		errors.As(err, &why)
		return Judgement{Request: req, Outcome: Wait, Reason: why.Reason, Message: why.Message}
	}
	trust := r.trust.of(signer.KeyPair, authority)
	switch violation, wait := signer.checkTrust(req, trust.Trust, trust.front); {
	case wait && trust.front.forbids(req) != nil:
		return Judgement{Request: req, IfTrusted: violation,
			Outcome: Wait, Reason: "CATrustUnknown", Message: trust.front.waitsForFrontProxy(violation)}
	case wait:
		return Judgement{Request: req, IfTrusted: violation,
			Outcome: Wait, Reason: "CATrustUnknown", Message: waitsForTrust(violation, trust.Evidence)}
	case violation != nil:
		return Judgement{Request: req, Outcome: Failed, Reason: violation.Reason, Message: violation.Message}
	}
	if size := obj.Size() + authority.LongestPEM(req.Cert); size > maxObject {
		return Judgement{Request: req, Outcome: Failed, Reason: csr.ReasonTooLarge,
			Message: fmt.Sprintf("the request and its certificate need up to %d bytes, and the API server stores at most %d in an object; ask for fewer names, with fewer labels and annotations", size, maxObject)}
	}
	return Judgement{Request: req, Authority: authority, LifetimeCap: longest}
}

// unread is the Judgement of a request that csr.Limits.Parse returns err for.
func unread(err error) Judgement {
	if refused := (*csr.Refused)(nil); errors.As(err, &refused) {
		return Judgement{Outcome: Failed, Reason: refused.Reason, Message: refused.Message}
	}
	return Judgement{Outcome: Wait, Reason: "InternalError", Message: csr.Fault(err)}
}

// fail marks obj as Failed, and tells why.
func (r *Reconciler) fail(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement) error {
	csr.AddCondition(obj, certificatesv1.CertificateFailed, judged.Reason, judged.Message, r.serverTime().Now())
	// What only etcd can hold, such as a request without PKCS#10, the API server refuses to mark: then it is told, and
	// left to the cleaner.
	if err := r.Client.Status().Update(ctx, obj, client.FieldOwner(FieldManager)); err != nil && !final(err) {
		stored, readErr := r.read(ctx, obj)
		if readErr != nil || !hasFailedAs(stored, obj.UID, judged) {
			r.failures.Keep(obj, judged) // it may be stored yet
			return newsOrError(err)
		}
	}
	r.failed(ctx, obj, judged)
	return nil
}

// settleFailure tells why obj is Failed if the write of that had no answer.
func (r *Reconciler) settleFailure(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) {
	if judged, ok := r.failures.Of(obj); ok && hasFailedAs(obj, obj.UID, judged) {
		r.failed(ctx, obj, judged)
	}
}

func hasFailedAs(obj *certificatesv1.CertificateSigningRequest, uid types.UID, judged Judgement) bool {
	return obj.UID == uid && csr.HasCondition(obj, certificatesv1.CertificateFailed, judged.Reason, judged.Message)
}

func (r *Reconciler) failed(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement) {
	r.failures.Drop(obj.Name)
	judged.Message = judged.Sentence(obj.Spec.SignerName)
	r.tell(ctx, obj, judged)
}

// Sentence is that of the Event about a request for signerName: where it fails, the condition has the Message alone,
// which is kube-controller-manager's.
func (j Judgement) Sentence(signerName string) string {
	if j.Outcome != Failed {
		return j.Message
	}
	return fmt.Sprintf("signer %s refuses this request for good: %s; a new request is needed", signerName, j.Message)
}

// CutShort is the sentence of the Event about a certificate that ends early because its CA does.
func CutShort(issued *ca.Issued) string {
	return fmt.Sprintf("the certificate ends %s early, at %s, because its CA ends then: replace the CA",
		issued.Cut.Round(time.Second), issued.NotAfter.Format(time.RFC3339))
}

func (r *Reconciler) measure(obj *certificatesv1.CertificateSigningRequest) {
	outcomesTotal.WithLabelValues(obj.Spec.SignerName, "Issued", "").Inc()
	createdToIssued.WithLabelValues(obj.Spec.SignerName).Observe(r.serverTime().Since(obj.CreationTimestamp.Time).Seconds())
	if at := csr.ApprovedAt(obj); !at.IsZero() {
		approvedToIssued.WithLabelValues(obj.Spec.SignerName).Observe(r.serverTime().Since(at).Seconds())
	}
}

// tell reports an outcome other than a certificate, once, as Event, metric and record.
func (r *Reconciler) tell(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement) {
	if !r.Reporter.Request(obj, obj.Spec.Username, "Sign", judged.Reason, judged.Message) {
		return
	}
	outcomesTotal.WithLabelValues(obj.Spec.SignerName, judged.Outcome, judged.Reason).Inc()
	record := audit.Of(obj, judged.Request)
	record.Verdict, record.Reason, record.Message = judged.Outcome, judged.Reason, judged.Message
	r.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)
}

// newsOrError turns a refused write into nil when it only means that the object has changed: the watch brings it.
func newsOrError(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("update status: %w", err)
}

// startedAt is when a dry run looked at its first request, in whole seconds as the API's times are.
type startedAt struct {
	once sync.Once
	at   time.Time
}

func (s *startedAt) or(now time.Time) time.Time {
	s.once.Do(func() { s.at = now.Truncate(time.Second) })
	return s.at
}

// rehearsable says whether obj is one of ours that has been approved, by whomever it has been signed or failed since.
func (r *Reconciler) rehearsable(obj *certificatesv1.CertificateSigningRequest) bool {
	_, ours := r.Signers[obj.Spec.SignerName]
	return ours && !csr.ApprovedAt(obj).IsZero()
}

// rehearse says what would become of obj, and signs nothing. What another signer has signed or failed is judged too, as it
// is usually faster, unless it was approved before this began.
func (r *Reconciler) rehearse(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time) reconcile.Result {
	began := r.started.or(r.serverTime().Now())
	waiting := r.signable(obj)
	if !waiting && (!r.rehearsable(obj) || csr.StateOf(obj) == csr.Denied || csr.ApprovedAt(obj).Before(began)) {
		return reconcile.Result{}
	}
	judged := r.Judge(obj, now)
	r.tellWould(ctx, obj, judged)
	if !waiting || judged.Authority != nil || judged.Outcome != Wait {
		return reconcile.Result{}
	}
	low := handler.LowPriority
	return reconcile.Result{RequeueAfter: csr.Pause(r.serverTime().Since(obj.CreationTimestamp.Time)), Priority: &low}
}

// wouldOutcomes are the reasons of a dry run by outcome.
var wouldOutcomes = map[string]string{"Issued": "WouldIssue", Failed: "WouldFail", Wait: "WouldWait", Ignore: "WouldIgnore"}

// tellWould says what would become of obj, once.
func (r *Reconciler) tellWould(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement) {
	outcome, tell := judged.Outcome, r.Reporter.Request
	message := fmt.Sprintf("%s: %s", judged.Reason, judged.Sentence(obj.Spec.SignerName))
	if judged.Authority != nil {
		outcome, tell, message = "Issued", r.Reporter.Would, fmt.Sprintf("key %s would sign it", judged.Authority.KeyID())
	}
	would := wouldOutcomes[outcome]
	if !tell(obj, obj.Spec.Username, "Sign", would, message) {
		return
	}
	dryRunTotal.WithLabelValues(obj.Spec.SignerName, outcome, judged.Reason).Inc()
	record := audit.Of(obj, judged.Request)
	record.Verdict, record.Reason, record.Message = would, judged.Reason, message
	r.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)
}
