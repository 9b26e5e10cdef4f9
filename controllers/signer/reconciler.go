// Package signer signs approved CertificateSigningRequests with a CA from a Secret or from files, and writes one
// certificate or one Failed condition. It approves and deletes nothing.
package signer

import (
	"context"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-signer"

// Reconciler signs requests. Fields left nil are filled in from the manager by SetupWithManager.
type Reconciler struct {
	// Signers say how to sign, by signer name. Requests of other signers are not touched.
	Signers map[string]Signer
	// Retention is the cleaner's: what is due for deletion is no longer signed, so that a backlog of stale approvals
	// never turns into certificates.
	Retention csr.RetentionPolicy

	Client   client.Client
	Reporter *report.Reporter
	Clock    clock.PassiveClock
}

// outcome is what is to be written or told about one request: exactly one of its fields is set.
type outcome struct {
	issued *ca.Issued
	failed *ca.Violation
	wait   *Unavailable
}

// Reconcile signs one request, or fails it, or says why it waits.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// The cache's own object: judging only reads, and apply writes a copy.
	if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !r.signable(obj) {
		return reconcile.Result{}, nil
	}
	now := r.Clock.Now()
	if at, ok := r.Retention.Deadline(obj); ok && now.After(at) {
		r.tell(ctx, obj, "Ignore", "RequestTooOld", fmt.Sprintf("approved, but due for deletion since %s: it is not signed any more; a new request is needed", at.UTC().Format(time.RFC3339)))
		return reconcile.Result{}, nil
	}
	req, err := csr.Parse(obj)
	if err != nil {
		return r.apply(ctx, obj, nil, outcome{failed: &ca.Violation{Reason: "Malformed", Message: err.Error()}})
	}
	result, err := r.sign(r.Signers[obj.Spec.SignerName], req, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.apply(ctx, obj, req, result)
}

// signable says whether obj is one of ours that waits for a certificate.
func (r *Reconciler) signable(obj *certificatesv1.CertificateSigningRequest) bool {
	_, ours := r.Signers[obj.Spec.SignerName]
	return ours && csr.StateOf(obj) == csr.Approved
}

func (r *Reconciler) sign(signer Signer, req *csr.Request, now time.Time) (outcome, error) {
	if violation := signer.check(req); violation != nil {
		return outcome{failed: violation}, nil
	}
	authority, err := signer.KeyPair.Authority(now)
	if err != nil {
		var unavailable *Unavailable
		errors.As(err, &unavailable)
		return outcome{wait: unavailable}, nil
	}
	issued, err := authority.Issue(signer.Profile, req.Cert, now)
	if err != nil {
		return outcome{}, fmt.Errorf("issue certificate: %w", err)
	}
	return outcome{issued: issued}, nil
}

func (r *Reconciler) apply(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, result outcome) (reconcile.Result, error) {
	switch {
	case result.wait != nil:
		return r.wait(ctx, obj, result.wait), nil
	case result.failed != nil:
		return reconcile.Result{}, r.fail(ctx, obj.DeepCopy(), result.failed)
	default:
		return reconcile.Result{}, r.store(ctx, obj.DeepCopy(), req, result.issued)
	}
}

// wait tells why obj is not signed yet. A new CA wakes it at once; looking again is the safety net.
func (r *Reconciler) wait(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, why *Unavailable) reconcile.Result {
	r.tell(ctx, obj, "Wait", why.Reason, why.Message)
	low := handler.LowPriority
	return reconcile.Result{RequeueAfter: csr.Pause(r.Clock.Since(obj.CreationTimestamp.Time)), Priority: &low}
}

func (r *Reconciler) fail(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, why *ca.Violation) error {
	csr.AddCondition(obj, certificatesv1.CertificateFailed, why.Reason, why.Message, r.Clock.Now())
	if err := r.Client.Status().Update(ctx, obj); err != nil && !final(err) {
		return newsOrError(err)
	}
	// What only etcd can hold, such as a request without PKCS#10, the API server refuses to mark: then it is told, and
	// left to the cleaner.
	r.tell(ctx, obj, "Failed", why.Reason,
		fmt.Sprintf("signer %s refuses this request for good: %s; a new request is needed", obj.Spec.SignerName, why.Message))
	return nil
}

// store writes the certificate. Its serial is logged before, so that no certificate exists that no log names.
func (r *Reconciler) store(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, issued *ca.Issued) error {
	logger := log.FromContext(ctx).WithValues("uid", obj.UID, "signer", obj.Spec.SignerName, "serial", issued.Serial.Text(16))
	logger.Info("Signed", "requester", obj.Spec.Username, "subject", req.SubjectText(), "keyID", req.KeyID(),
		"notBefore", issued.NotBefore, "notAfter", issued.NotAfter)
	obj.Status.Certificate = issued.PEM
	if err := r.Client.Status().Update(ctx, obj); err != nil {
		if final(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			logger.Info("Discarded the certificate: it was not stored", "cause", err.Error())
		} else {
			logger.Info("The certificate may have been stored or not", "cause", err.Error())
		}
		if final(err) {
			r.tell(ctx, obj, "Ignore", "Malformed", fmt.Sprintf("the API server takes no certificate for this request: %v; a new request is needed", err))
			return nil
		}
		return newsOrError(err)
	}
	outcomesTotal.WithLabelValues(obj.Spec.SignerName, "Issued", "").Inc()
	if issued.Cut > 0 {
		lifetimeCutTotal.WithLabelValues(obj.Spec.SignerName).Inc()
		r.Reporter.Request(obj, obj.Spec.Username, "Sign", "LifetimeCut",
			fmt.Sprintf("the certificate ends %s early, at %s, because its CA ends then: replace the CA", issued.Cut.Round(time.Second), issued.NotAfter.Format(time.RFC3339)))
	}
	return nil
}

// tell reports an outcome other than a certificate, once, as Event, metric and log.
func (r *Reconciler) tell(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, outcome, reason, message string) {
	if !r.Reporter.Request(obj, obj.Spec.Username, "Sign", reason, message) {
		return
	}
	outcomesTotal.WithLabelValues(obj.Spec.SignerName, outcome, reason).Inc()
	log.FromContext(ctx).Info("Not signed", "outcome", outcome, "reason", reason, "message", csr.Shorten(message),
		"uid", obj.UID, "signer", obj.Spec.SignerName, "requester", obj.Spec.Username)
}

// newsOrError turns a refused write into nil when it only means that the object has changed: the watch brings it.
func newsOrError(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("update status: %w", err)
}

// final says whether trying again is no use as long as the object stays as it is.
func final(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err)
}
