// Package cleaner deletes CertificateSigningRequests, of every signer, when they are due. It judges nothing else.
package cleaner

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-cleaner"

// DefaultDeletesPerSecond bounds how fast a backlog goes, so that a restart does not flood the API server.
const DefaultDeletesPerSecond = 100

// Reconciler deletes requests. Fields left nil are filled in from the manager by SetupWithManager.
type Reconciler struct {
	// Retention says when.
	Retention csr.RetentionPolicy
	// Limiter bounds the rate of deletions; nil is DefaultDeletesPerSecond.
	Limiter flowcontrol.RateLimiter

	Client client.Client
	Clock  clock.PassiveClock
}

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch;delete

// SetupWithManager fills in what is nil and registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.Options) error {
	if r.Client == nil {
		r.Client = mgr.GetClient()
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.Limiter == nil {
		r.Limiter = flowcontrol.NewTokenBucketRateLimiter(DefaultDeletesPerSecond, DefaultDeletesPerSecond)
	}
	return builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&certificatesv1.CertificateSigningRequest{}).
		WithOptions(options).
		Complete(r)
}

// Reconcile deletes one request, or comes back when it is due.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, key)
	if err != nil {
		errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
	}
	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// The cache's own object: nothing of it is changed.
	if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	at, ok := r.Retention.Deadline(obj)
	if !ok || obj.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if left := at.Sub(r.Clock.Now()); left >= 0 {
		return reconcile.Result{RequeueAfter: left + time.Millisecond}, nil // due once the instant has passed
	}
	return reconcile.Result{}, r.delete(ctx, obj)
}

// delete removes exactly what was judged: with another UID it is another request, with another resourceVersion it has
// changed, and the watch brings it again.
func (r *Reconciler) delete(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) error {
	if err := r.Limiter.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the deletion rate: %w", err)
	}
	err := r.Client.Delete(ctx, obj, client.Preconditions{UID: &obj.UID, ResourceVersion: &obj.ResourceVersion})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete request: %w", err)
	}
	state := csr.StateOf(obj)
	deletedTotal.WithLabelValues(string(state)).Inc()
	log.FromContext(ctx).Info("Deleted", "uid", obj.UID, "signer", obj.Spec.SignerName, "state", state)
	return nil
}
