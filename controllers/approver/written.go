package approver

import (
	"context"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// readTimeout bounds the one read after a write without a certain answer.
const readTimeout = 10 * time.Second

// outcome is a decision that is written as a condition.
type outcome struct {
	req      *csr.Request
	decision Decision
	kind     certificatesv1.RequestConditionType
}

func (o outcome) in(obj *certificatesv1.CertificateSigningRequest) bool {
	return csr.HasCondition(obj, o.kind, o.decision.Reason, o.decision.Message)
}

// landed reports whether the API server holds the decision, though its write failed with err. A conflict does not mean that
// nothing was stored: the client repeats a write after a 5xx, and the first one may have been stored. An error means that
// the decision is not known to be lost for good.
func (r *Reconciler) landed(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, about outcome, err error) (bool, error) {
	if apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsTooManyRequests(err) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	stored := &certificatesv1.CertificateSigningRequest{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(obj), stored); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if stored.ResourceVersion == obj.ResourceVersion {
		return false, errors.New("the request has not changed") // so no watch brings it again
	}
	return stored.UID == obj.UID && about.in(stored), nil
}

// unwritten says what follows from a decision that is not known to be stored after its write failed with err.
func (r *Reconciler) unwritten(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, about outcome, err, unsettled error) (reconcile.Result, error) {
	if about.decision.Verdict == Approve {
		r.limiter.giveBack(about.req)
	}
	if unsettled == nil && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
		return reconcile.Result{}, nil // the watch brings what changed
	}
	if apierrors.IsInvalid(err) { // it stays so until the object changes
		return r.refuse(ctx, obj, about.req, malformed(fmt.Errorf("the API server takes no approval for this request: %w", err))), nil
	}
	r.written.Keep(obj, about)
	return reconcile.Result{}, fmt.Errorf("update approval: %w", err)
}

// settle records a decision that turns out to be stored, after its write had no certain answer.
func (r *Reconciler) settle(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) {
	about, ok := r.written.Of(obj)
	r.written.Drop(obj.Name)
	if !ok || !about.in(obj) {
		return
	}
	if about.decision.Verdict == Approve {
		r.limiter.check(about.req) // it was given back
	}
	r.decided(ctx, obj, about)
}

// decided tells of a decision that is stored.
func (r *Reconciler) decided(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, about outcome) {
	r.written.Drop(obj.Name)
	if about.decision.Verdict == Deny {
		r.Reporter.Request(obj, obj.Spec.Username, "Approve", about.decision.Reason, about.decision.Message)
	} else {
		createdToApproved.WithLabelValues(obj.Spec.SignerName).Observe(r.serverTime().Since(obj.CreationTimestamp.Time).Seconds())
	}
	r.record(ctx, obj, about.req, about.decision)
}
