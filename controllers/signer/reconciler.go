// Package signer signs approved CertificateSigningRequests with a CA from a Secret or from files. It writes one
// certificate or one Failed condition. It approves and deletes nothing.
package signer

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-signer"

// fieldManager is the field manager of the signer's writes, whatever the program is called.
const fieldManager = "csr-controller-manager"

// Reconciler signs requests. SetupWithManager sets nil fields from the manager.
type Reconciler struct {
	// Signers says how to sign, by signer name. Requests for other signers are not changed.
	Signers map[string]Signer
	// Retention is the cleaner's retention. A request that is due for deletion is not signed, so a backlog of stale
	// approvals never becomes certificates.
	Retention csr.RetentionPolicy
	// RequestLimits bounds what is read of a request. A larger request is marked as Failed.
	RequestLimits csr.Limits
	// DryRun signs nothing and writes to no request. It reports the outcome that each waiting request would have, also of
	// requests that another signer has signed or failed.
	DryRun bool
	// BlockList, if set, names the nodes and the certificates for which nothing is signed, even if a request is approved.
	// The caller runs it.
	BlockList *blocklist.List

	Client client.Client
	// Live reads past the cache. After a failed write, it shows whether the write was stored.
	Live client.Reader
	// Home is the cluster of the Secrets with CAs, if it is not the manager's. Events about CAs are there too then.
	Home cluster.Cluster
	// Recorder records Events about requests and CAs.
	Recorder events.EventRecorder
	// Workers is the number of requests in progress at a time; zero means 20.
	Workers int
	// Clock is the clock by which certificates are issued. If it is a clock.WithTicker, the delays of the queue follow it.
	Clock clock.PassiveClock
	// ServerTime is the clock by which ages count; nil means Clock. Nothing is signed while the clocks differ.
	ServerTime *servertime.Clock
	// Audit, if set, receives a record of each certificate, of each request that fails, and of each outcome of a dry run.
	Audit *audit.Log

	reporter *report.Reporter
	waiting  fairqueue.Index // requests that wait for a certificate, marked with their signer
	trusts   sync.Map        // *keypair.KeyPair → caTrust
}

// Outcome says what becomes of an approved request. Approve stores the certificate that Check has signed, Deny marks the
// request as Failed. Wait and Ignore do neither, and the request is checked again later.
type Outcome struct {
	judge.Decision
	Request   *csr.Request // nil if it was not parsed
	Authority *ca.Authority

	issued   *ca.Issued    // signed and verified, but not recorded yet
	mismatch *ca.LintError // why a finished certificate was dropped
	retry    time.Duration // when to check the request again; zero means by its age
	quiet    bool          // the reason passes within a moment and is not reported
}

// name returns the name of o in metrics and audit records.
func (o Outcome) name() string {
	switch o.Verdict {
	case judge.Approve:
		return "Issued"
	case judge.Deny:
		return "Failed"
	default:
		return o.Verdict.String()
	}
}

// enqueue enqueues obj if reconcile has something to do.
func (r *Reconciler) enqueue(obj *certificatesv1.CertificateSigningRequest, queue requestQueue) {
	if !r.waits(r.asApproved(obj)) {
		r.waiting.Remove(obj.Name)
		return
	}
	key := fairqueue.KeyOf(obj, r.RequestLimits.NodeOf(obj))
	r.waiting.Put(key, fairqueue.Digest(obj.Spec.SignerName))
	queue.Add(key)
}

// forget forgets obj, which was deleted.
func (r *Reconciler) forget(obj *certificatesv1.CertificateSigningRequest) {
	r.waiting.Remove(obj.Name)
	r.reporter.Forget(obj)
}

// reconcile signs a request, marks it as Failed, or reports why it waits. An error goes to the work queue, which retries.
func (r *Reconciler) reconcile(ctx context.Context, key fairqueue.Key) (_ reconcile.Result, err error) {
	defer func() {
		if err != nil {
			errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
		}
	}()
	// This is the cache's own object. Check only reads it, and writes use a copy.
	obj := &certificatesv1.CertificateSigningRequest{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: key.Name}, obj, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // gone, or retried by the queue
	}
	obj = r.asApproved(obj)
	if obj.UID != key.UID || !r.waits(obj) {
		return reconcile.Result{}, nil // the watch brings a change
	}
	if csr.Large(obj) {
		if obj, err = call.Whole(ctx, r.Live, obj); obj == nil {
			return reconcile.Result{}, err // a watch brings a change
		}
	}
	return r.act(ctx, obj, r.Check(ctx, obj))
}

// act stores the outcome, or reports why nothing is stored. A dry run only reports.
func (r *Reconciler) act(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, outcome Outcome,
) (reconcile.Result, error) {
	switch {
	case outcome.quiet:
	case r.DryRun:
		r.report(ctx, obj, outcome)
	case outcome.Verdict == judge.Approve:
		return r.issue(ctx, obj, outcome)
	case outcome.Verdict == judge.Deny && csr.Reachable(obj):
		return r.fail(ctx, obj, outcome)
	default:
		if outcome.mismatch != nil {
			mismatchesTotal.WithLabelValues(obj.Spec.SignerName).Inc()
			discardedTotal.WithLabelValues(obj.Spec.SignerName).Inc()
			record := audit.Of(obj, outcome.Request)
			record.IssuerKeyID, record.Serial = outcome.Authority.KeyID(), outcome.mismatch.Serial.Text(16)
			record.Reason, record.Message = outcome.Reason, outcome.mismatch.Error()
			r.Audit.Write(ctx, r.Clock.Now(), audit.Discarded, record)
		}
		r.report(ctx, obj, outcome)
	}
	if outcome.retry > 0 {
		return reconcile.Result{RequeueAfter: outcome.retry}, nil // checked again after that pause
	}
	return r.again(obj), nil // checked again by its age
}

// waits reports whether obj waits for a certificate from one of Signers. A trimmed request never does, nor one that is
// being deleted.
func (r *Reconciler) waits(obj *certificatesv1.CertificateSigningRequest) bool {
	_, ours := r.Signers[obj.Spec.SignerName]
	return ours && csr.StateOf(obj) == csr.Approved && !csr.Trimmed(obj) && obj.DeletionTimestamp == nil
}

// signedFor is how long after its approval a dry run checks a request that another signer has signed or failed.
const signedFor = time.Minute

// asApproved returns obj. In a dry run, it omits what another signer has stored a moment ago.
func (r *Reconciler) asApproved(obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	state := csr.StateOf(obj)
	if !r.DryRun || state != csr.Issued && state != csr.Failed || r.ServerTime.Latest().Sub(csr.ApprovedAt(obj)) > signedFor {
		return obj
	}
	approved := *obj
	approved.Status.Certificate = nil
	approved.Status.Conditions = slices.DeleteFunc(slices.Clone(obj.Status.Conditions),
		func(condition certificatesv1.CertificateSigningRequestCondition) bool {
			return condition.Type == certificatesv1.CertificateFailed
		})
	return &approved
}

// again returns when to check obj again, which depends on the time since its approval. Any change that the request waits
// for wakes it earlier.
func (r *Reconciler) again(obj *certificatesv1.CertificateSigningRequest) reconcile.Result {
	since := csr.ApprovedAt(obj)
	if since.IsZero() {
		since = obj.CreationTimestamp.Time
	}
	return reconcile.Result{RequeueAfter: csr.Pause(r.ServerTime.Latest().Sub(since))}
}

// Check checks obj, an approved request for one of Signers, and signs its certificate in memory. It writes nothing.
//  1. The clocks agree, and obj is not due for deletion.
//  2. The request can be parsed within the limits.
//  3. The rules of its signer permit it.
//  4. The block list names neither its node nor its certificate.
//  5. The CA may sign for this signer, and the trust of the cluster in the CA permits the request.
//  6. The signed certificate is the requested one, and verifiers accept it with its chain.
func (r *Reconciler) Check(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) Outcome {
	if outcome := r.checkTime(ctx, obj); outcome != nil {
		return *outcome
	}
	req, err := r.RequestLimits.Parse(obj)
	if refused := (*csr.Refused)(nil); errors.As(err, &refused) {
		return Outcome{Decision: judge.Decision{Verdict: judge.Deny, Reason: refused.Reason, Message: refused.Message}}
	} else if err != nil {
		return Outcome{Decision: judge.Wait.Because("InternalError", "%s", csr.Fault(err))}
	}
	signer := r.Signers[obj.Spec.SignerName]
	if violation := signer.check(req); violation != nil {
		return Outcome{Request: req, Decision: deny(violation)}
	}
	if blocked := r.BlockList.Check(req); blocked.Made() { // the node or the certificate may be removed from the list
		return Outcome{Request: req, Decision: blocked}
	}
	return r.sign(req, signer)
}

// checkTime returns why nothing may be signed for obj because of the time, or nil.
func (r *Reconciler) checkTime(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) *Outcome {
	now, err := r.ServerTime.Agreed(ctx)
	at, due := r.Retention.Deadline(obj, now)
	if err == nil && due && now.After(at) { // obj seems old too if the API servers' clock was set back
		if now, err = r.ServerTime.Fresh(ctx); err == nil {
			now, err = r.ServerTime.Agreed(ctx)
		}
	}
	switch {
	case err != nil && now.IsZero():
		return &Outcome{retry: time.Second, Decision: judge.Wait.Because("ClockSkewed",
			"the time of the API servers is unknown, and nothing is signed meanwhile: see the readiness check \"clock\" of the manager")}
	case err != nil: // no event says that the clocks agree again
		return &Outcome{retry: 10 * time.Second, Decision: judge.Wait.Because("ClockSkewed", "%v", err)}
	case due && now.After(at):
		return &Outcome{retry: report.Again, Decision: judge.Ignore.Because("RequestTooOld",
			"the request is approved, but due for deletion since %s and no longer signed; a new request is needed",
			at.UTC().Format(time.RFC3339))}
	default:
		return nil
	}
}

// sign does steps 5 and 6 of Check: only a finished certificate shows whether verifiers accept it.
func (r *Reconciler) sign(req *csr.Request, signer Signer) Outcome {
	now := r.ServerTime.Latest()
	authority, longest, err := signer.KeyPair.AuthorityFor(req.SignerName, now)
	if err != nil {
		why := &keypair.Unavailable{Reason: "CAMissing", Message: err.Error()}
		errors.As(err, &why)
		return Outcome{Request: req, Decision: judge.Decision{Verdict: judge.Wait, Reason: why.Reason, Message: why.Message}}
	}
	trust := r.trustOf(signer.KeyPair, authority)
	violation := signer.checkTrust(req, trust)
	switch {
	case violation != nil && trust.unread != isRead:
		return Outcome{Request: req, quiet: trust.unread == notRead, Decision: judge.Wait.Because("CATrustUnknown",
			"it is unknown whether API servers trust this CA: %s; if they do, the request is refused (%s: %s), otherwise it is signed",
			trust.unread, violation.Reason, violation.Message)}
	case violation != nil:
		return Outcome{Request: req, Decision: deny(violation)}
	}
	issued, err := authority.Issue(signer.Profile.Within(longest), req.Cert, now.Truncate(time.Second)) // certificates have whole seconds
	outcome := Outcome{Request: req, Authority: authority, issued: issued}
	switch {
	case err == nil:
		outcome.Verdict = judge.Approve
	case errors.As(err, &violation):
		outcome.Decision = deny(violation)
	case errors.As(err, &outcome.mismatch):
		outcome.Decision = judge.Ignore.Because("CertificateMismatch",
			"%v: the certificate was not stored; report this defect of the signer, with the request", err)
	default:
		outcome.Decision = judge.Wait.Because("CAInvalid", "%s cannot sign this request: %v", signer.KeyPair.Name(), err)
	}
	return outcome
}

// deny returns the decision about a request that can never be signed.
func deny(why *ca.Violation) judge.Decision {
	return judge.Decision{Verdict: judge.Deny, Reason: why.Reason, Message: why.Message}
}

// issue stores the certificate that Check has signed.
//  1. If a ledger is kept, it records the certificate.
//  2. The audit log records the certificate, so each one has a record.
//  3. One write stores it. If the write fails, a read shows whether it is stored.
//  4. The audit log records why it is not stored, or that this is uncertain. Then the digest in the record shows whether
//     the request has this certificate.
//  5. A certificate that another program has stored is reported.
//  6. A request that does not fit into an object with its certificate fails. Any other attempt is repeated, with a new
//     certificate.
func (r *Reconciler) issue(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, outcome Outcome,
) (reconcile.Result, error) {
	issued, keyID := outcome.issued, outcome.Authority.KeyID()
	if err := r.Signers[obj.Spec.SignerName].KeyPair.Cover(ctx, keyID, obj.Spec.SignerName, issued.NotAfter); err != nil {
		message := fmt.Sprintf("the certificate is not signed, because the CA's ledger cannot record it: %v", err)
		if errors.Is(err, ledger.ErrNoAccount) {
			message += "; the ledger was deleted or does not exist yet: check that the rotation controller runs, " +
				"which creates it and counts earlier certificates as outstanding (kubectl get signingauthorities -o wide)"
		}
		r.report(ctx, obj, Outcome{Request: outcome.Request, Decision: judge.Wait.Because("LedgerUnavailable", "%s", message)})
		return reconcile.Result{}, err // retried by the queue
	}
	record := audit.Of(obj, outcome.Request)
	record.IssuerKeyID, record.Serial = keyID, issued.Serial.Text(16)
	record.CertificateSHA256 = hex.EncodeToString(issued.SHA256[:])
	record.NotBefore, record.NotAfter = issued.NotBefore, issued.NotAfter
	r.Audit.Write(ctx, r.Clock.Now(), audit.Signed, record)

	result := call.Store(ctx, r.Live, r.Client.Status(), obj, func(signed *certificatesv1.CertificateSigningRequest) {
		signed.Status.Certificate = issued.PEM
	}, client.FieldOwner(fieldManager))
	if result.Err != nil {
		record.Message = result.Err.Error()
		r.Audit.Write(ctx, r.Clock.Now(), result.Outcome, record)
	}
	switch result.Outcome {
	case audit.Stored:
		r.countIssued(obj, issued)
		return reconcile.Result{}, nil // done
	case audit.Discarded:
		discardedTotal.WithLabelValues(obj.Spec.SignerName).Inc()
		r.reportForeign(ctx, result.Live, outcome.Authority)
	}
	if report.TooLarge(result.Err) {
		return r.fail(ctx, obj, Outcome{Request: outcome.Request, Decision: judge.Deny.Because(csr.ReasonTooLarge,
			"the request does not fit into an object with its certificate: the API server refused it as too large; "+
				"make a request with fewer names, labels or annotations")})
	}
	return r.notStored(ctx, obj, outcome.Request, "the certificate", result)
}

// countIssued counts a stored certificate, and reports a lifetime that the CA cut short.
func (r *Reconciler) countIssued(obj *certificatesv1.CertificateSigningRequest, issued *ca.Issued) {
	name, now := obj.Spec.SignerName, r.ServerTime.Latest()
	outcomesTotal.WithLabelValues(name, "Issued", "").Inc()
	createdToIssued.WithLabelValues(name).Observe(now.Sub(obj.CreationTimestamp.Time).Seconds())
	if at := csr.ApprovedAt(obj); !at.IsZero() {
		approvedToIssued.WithLabelValues(name).Observe(now.Sub(at).Seconds())
	}
	if obj.Spec.ExpirationSeconds == nil {
		issuedLifetimeSeconds.WithLabelValues(name).Set(issued.NotAfter.Sub(issued.NotBefore).Seconds())
	}
	if issued.Cut > 0 {
		lifetimeCutTotal.WithLabelValues(name).Inc()
		r.reporter.Request(obj, "Sign", "LifetimeCut", fmt.Sprintf(
			"the certificate expires %s early, at %s, because its CA expires then: replace the CA",
			issued.Cut.Round(time.Second), issued.NotAfter.Format(time.RFC3339)))
	}
}

// reportForeign reports a certificate of stored that authority has not signed. Two signers with the same name race for
// each request, and may use different CAs. A certificate of authority itself is of this manager: its cache was stale, or
// another replica was the leader a moment ago.
func (r *Reconciler) reportForeign(
	ctx context.Context, stored *certificatesv1.CertificateSigningRequest, authority *ca.Authority,
) {
	if len(stored.Status.Certificate) == 0 {
		return
	}
	issuer := "an unknown CA"
	if certs, err := ca.ParseCertificates(stored.Status.Certificate); err == nil && len(certs) > 0 {
		if authority.Signed(certs[0]) {
			return
		}
		issuer = fmt.Sprintf("the CA %+q", csr.Shorten(certs[0].Issuer.String()))
	}
	name := stored.Spec.SignerName
	foreignTotal.WithLabelValues(name).Inc()
	log.FromContext(ctx).Info("Another signer has stored a certificate", "uid", stored.UID, "signer", name, "issuer", issuer)
	r.reporter.Request(stored, "Sign", "SecondSigner", fmt.Sprintf(
		"another program has stored the certificate of this request, issued by %s, but this manager signs for %s too: "+
			"disable that signer in one of the two, and check the issuer of this certificate", issuer, name))
}

// fail marks obj as Failed. Before that it writes an audit record. Once the condition is stored, fail reports why. The API
// server sets the condition's time.
func (r *Reconciler) fail(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, outcome Outcome,
) (reconcile.Result, error) {
	record := audit.Of(obj, outcome.Request)
	record.Verdict, record.Reason, record.Message = outcome.name(), outcome.Reason, outcome.Message
	r.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)
	result := call.Store(ctx, r.Live, r.Client.Status(), obj, func(failed *certificatesv1.CertificateSigningRequest) {
		csr.AddCondition(failed, certificatesv1.CertificateFailed, outcome.Reason, outcome.Message, time.Time{})
	}, client.FieldOwner(fieldManager))
	if result.Outcome == audit.Stored {
		r.report(ctx, obj, outcome)
		return reconcile.Result{}, nil // done
	}
	record.Message = result.Err.Error()
	r.Audit.Write(ctx, r.Clock.Now(), audit.NotStored, record)
	if apierrors.IsInvalid(result.Err) && outcome.Reason == csr.ReasonMalformed {
		// The API server validates spec.request at every update, so it never stores the condition of such a request.
		r.report(ctx, obj, outcome)
		return r.again(obj), nil // tried again by its age
	}
	return r.notStored(ctx, obj, outcome.Request, "the Failed condition ("+outcome.Reason+": "+outcome.Message+")", result)
}

// notStored returns when to try again to store something. It reports a refusal. What the API server refuses today, a
// changed role, webhook or policy may permit tomorrow, so the request is never given up.
func (r *Reconciler) notStored(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, something string, result call.Result,
) (reconcile.Result, error) {
	switch {
	case report.Refused(result.Err):
		errorsTotal.WithLabelValues(report.ErrorReason(result.Err)).Inc()
		r.report(ctx, obj, Outcome{Request: req, Decision: judge.Wait.Because("NotStored",
			"the API server refuses to store %s of this request: %v; correct the role, the admission policy or the webhook "+
				"that the answer names", something, result.Err)})
		return r.again(obj), nil // tried again by its age
	case result.Changed:
		return reconcile.Result{}, nil // the watch brings the change
	default:
		return reconcile.Result{}, fmt.Errorf("update status: %w", result.Err) // retried by the queue
	}
}

// wouldReasons has the reason that a dry run reports for each verdict.
var wouldReasons = map[judge.Verdict]string{
	judge.Approve: "WouldIssue", judge.Deny: "WouldFail", judge.Wait: "WouldWait", judge.Ignore: "WouldIgnore",
}

// report reports an outcome other than a certificate, and every outcome of a dry run, as Event, metric and log line. It
// reports each distinct outcome once. Only a dry run also records it. fail has recorded a failure before.
func (r *Reconciler) report(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, outcome Outcome) {
	event, counted, as := r.reporter.Request, outcomesTotal, outcome.name()
	reason, message := outcome.Reason, outcome.Message
	if outcome.Verdict == judge.Deny { // the Failed condition has only the Message, which is kube-controller-manager's text
		message = fmt.Sprintf("signer %s refuses this request permanently: %s; a new request is needed", obj.Spec.SignerName, message)
	}
	if r.DryRun {
		counted, as = dryRunTotal, wouldReasons[outcome.Verdict]
		reason, message = as, fmt.Sprintf("%s: %s", outcome.Reason, message)
		if outcome.Verdict == judge.Approve {
			event, message = r.reporter.Would, fmt.Sprintf("key %s would sign the request", outcome.Authority.KeyID())
		}
	}
	if !event(obj, "Sign", reason, message) {
		return
	}
	counted.WithLabelValues(obj.Spec.SignerName, outcome.name(), outcome.Reason).Inc()
	if outcome.Verdict == judge.Deny && !r.DryRun {
		return
	}
	record := audit.Of(obj, outcome.Request)
	record.Verdict, record.Reason, record.Message = as, outcome.Reason, message
	if r.DryRun {
		r.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)
	} else {
		record.Log(ctx, audit.NotSigned)
	}
}
