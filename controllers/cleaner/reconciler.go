// Package cleaner deletes CertificateSigningRequests of every signer when they are due. It approves and signs nothing.
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
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-cleaner"

// DefaultDeletesPerSecond bounds the rate of deletions, so that a restart with a backlog does not flood the API
// server.
const DefaultDeletesPerSecond = 100

const (
	// longestPause is the longest time between two reconciles of a request. After it, the cleaner notices that the clock
	// of the API servers was set, and it repeats a deletion that was answered wrongly.
	longestPause = 10 * time.Minute
	// clockPause is the pause of a request that cannot be judged, because the API servers' time is unknown.
	clockPause = time.Second
	// callTimeout bounds one deletion. Admission webhooks may take up to 30 s.
	callTimeout = 45 * time.Second
)

// Reconciler deletes requests. SetupWithManager sets nil fields from the manager.
type Reconciler struct {
	// Retention says when requests are due.
	Retention csr.RetentionPolicy
	// Limiter bounds the rate of deletions; nil means DefaultDeletesPerSecond.
	Limiter flowcontrol.RateLimiter
	// DryRun deletes nothing and reports what it would delete.
	DryRun bool

	Client client.Client
	// ServerTime is the clock by which ages count; nil means Clock.
	ServerTime *servertime.Clock
	// Clock is used if ServerTime or Reporter is nil.
	Clock clock.PassiveClock
	// Reporter is used only in a dry run.
	Reporter *report.Reporter
}

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=list;watch;delete

// SetupWithManager sets nil fields and registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.Options) error {
	if r.Client == nil {
		r.Client = mgr.GetClient()
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.ServerTime == nil {
		r.ServerTime = servertime.Of(r.Clock)
	}
	if r.Limiter == nil {
		r.Limiter = flowcontrol.NewTokenBucketRateLimiter(DefaultDeletesPerSecond, DefaultDeletesPerSecond)
	}
	if r.DryRun && r.Reporter == nil {
		r.Reporter = report.New(mgr.GetEventRecorder(Name), r.Clock)
	}
	return builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(predicate.Funcs{
			DeleteFunc: func(gone event.DeleteEvent) bool {
				r.Reporter.Forget(gone.Object)
				return false // there is nothing left to delete
			},
		})).
		WithOptions(options).
		Complete(r)
}

// Reconcile deletes a request that is due. It requeues every other request that becomes due.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// This is the cache's own object, and must not be changed.
	if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, failed(fmt.Errorf("read request: %w", err))
	}
	deadline, ok := r.Retention.Deadline(obj)
	if !ok || obj.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	now, err := r.ServerTime.Now(ctx)
	if seemsDue := err != nil || deadline.Before(now); seemsDue && !r.DryRun {
		// The rate bounds the attempts without a known time too: a large cache must not be reconciled without end.
		if r.Limiter.Wait(ctx) != nil { // the manager stops
			return reconcile.Result{RequeueAfter: clockPause}, nil
		}
		// If the clock of the API servers was set back, a new request seems to be old.
		now, err = r.ServerTime.Fresh(ctx)
	}
	switch left := deadline.Sub(now); {
	case err != nil:
		log.FromContext(ctx).V(1).Info("The request is not judged", "why", err.Error())
		return reconcile.Result{RequeueAfter: clockPause}, nil
	case left >= 0:
		// A request is due after its deadline, not at it.
		return reconcile.Result{RequeueAfter: min(left+time.Millisecond, longestPause)}, nil
	case r.DryRun:
		r.reportDue(ctx, obj, deadline)
		return reconcile.Result{RequeueAfter: longestPause}, nil
	default:
		return r.delete(ctx, obj, now)
	}
}

// delete deletes obj only if it has not changed. Another UID is another request. Another resourceVersion is a change,
// which the watch brings to the queue.
func (r *Reconciler) delete(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time,
) (reconcile.Result, error) {
	calling, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	err := r.Client.Delete(calling, obj, client.Preconditions{UID: &obj.UID, ResourceVersion: &obj.ResourceVersion})
	switch {
	case err == nil:
		state := csr.StateOf(obj)
		deletedTotal.WithLabelValues(string(state), reasonDue).Inc()
		log.FromContext(ctx).Info("Deleted",
			"uid", obj.UID, "signer", obj.Spec.SignerName, "state", state, "reason", reasonDue)
		return reconcile.Result{}, nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: longestPause}, nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		log.FromContext(ctx).Error(failed(err), "The API server refuses the deletion")
		return reconcile.Result{RequeueAfter: csr.Pause(now.Sub(obj.CreationTimestamp.Time))}, nil
	default:
		return reconcile.Result{}, failed(fmt.Errorf("delete request: %w", err))
	}
}

// failed counts err, and returns it.
func failed(err error) error {
	errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
	return err
}

// reportDue reports, once, that obj would be deleted.
func (r *Reconciler) reportDue(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, deadline time.Time) {
	state := csr.StateOf(obj)
	message := fmt.Sprintf("%s: the request is %s and due for deletion since %s",
		reasonDue, state, deadline.UTC().Format(time.RFC3339))
	if !r.Reporter.Would(obj, obj.Spec.Username, "Clean", "WouldDelete", message) {
		return
	}
	dryRunTotal.WithLabelValues(string(state), reasonDue).Inc()
	log.FromContext(ctx).Info("Would delete",
		"uid", obj.UID, "signer", obj.Spec.SignerName, "state", state, "reason", reasonDue)
}
