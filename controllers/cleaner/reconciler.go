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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/apicall"
	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-cleaner"

// DefaultDeletesPerSecond bounds the rate of deletions, so that a restart with a backlog does not flood the API
// server.
const DefaultDeletesPerSecond = 100

// retryAfter is when a deletion is tried again that was answered NotFound or Conflict. Nearly always the watch is faster.
const retryAfter = 30 * time.Second

// Reconciler deletes requests. SetupWithManager sets nil fields from the manager.
type Reconciler struct {
	// Retention says when requests are due.
	Retention csr.RetentionPolicy
	// Limiter bounds the rate of deletions; nil means DefaultDeletesPerSecond.
	Limiter flowcontrol.RateLimiter
	// SupersededAfter is how long a node's pending request is kept after the same requester has made a newer pending
	// request. Zero means as long as any other request.
	SupersededAfter time.Duration
	// RequestLimits bounds what is read of a request.
	RequestLimits csr.Limits
	// DryRun deletes nothing and reports what it would delete.
	DryRun bool

	Client client.Client
	Clock  clock.PassiveClock
	// ServerTime is the clock by which ages count; nil means Clock.
	ServerTime *servertime.Clock
	// Reporter is used only in a dry run.
	Reporter *report.Reporter

	pending supersedable
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
	if r.SupersededAfter > 0 {
		if err := mgr.Add(&indexer{reconciler: r, cache: mgr.GetCache(), log: mgr.GetLogger().WithName(Name)}); err != nil {
			return fmt.Errorf("index the requests of each node: %w", err)
		}
	}
	return builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(made event.CreateEvent) bool { return r.soon(made.Object) },
			UpdateFunc: func(changed event.UpdateEvent) bool { return r.soon(changed.ObjectNew) },
			DeleteFunc: func(gone event.DeleteEvent) bool {
				r.Reporter.Forget(gone.Object)
				return false // there is nothing left to delete
			},
		})).
		WatchesRawSource(source.Func(func(ctx context.Context, queue controllerQueue) error {
			go r.search(ctx, mgr.GetCache(), mgr.GetLogger().WithName(Name), queue)
			return nil
		})).
		WithOptions(options).
		Complete(r)
}

// Reconcile deletes a request that is due, or requeues it if it becomes due soon. Until then the search finds it.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, key)
	if err != nil {
		errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
	}
	return apicall.Requeue(ctx, result, err)
}

func (r *Reconciler) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// This is the cache's own object, and must not be changed.
	if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if obj.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if _, err := r.serverTime().Skew(); err != nil { // with a skewed clock a deletion could be too early
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	now := r.serverTime().Now()
	next := r.next(obj, now)
	if next.at.IsZero() {
		return reconcile.Result{}, nil
	}
	switch left := next.at.Sub(now); {
	case left > horizon:
		return reconcile.Result{}, nil
	case left >= 0:
		// A request is due after its deadline, not at it.
		return reconcile.Result{RequeueAfter: left + time.Millisecond}, nil
	}
	return r.confirm(ctx, obj, next)
}

// confirm deletes obj if next, a deletion that is due, still holds by a fresh measurement of the time and by the cache.
func (r *Reconciler) confirm(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, next step) (reconcile.Result, error) {
	if err := r.serverTime().Refresh(ctx, obj.ResourceVersion); err != nil {
		return reconcile.Result{}, err
	}
	if !next.at.Before(r.serverTime().Now()) { // the clock of an API server was set back
		return reconcile.Result{RequeueAfter: searchTick}, nil
	}
	if next.reason == reasonSuperseded {
		// The cache may be newer than the index.
		if current, err := r.stillPending(ctx, next.newer); err != nil || !current {
			return reconcile.Result{RequeueAfter: time.Second}, err
		}
	}
	return r.delete(ctx, obj, next)
}

// Overdue returns how long obj has been due for deletion. It returns zero if obj is not due, or if that is unknown.
func (r *Reconciler) Overdue(obj *certificatesv1.CertificateSigningRequest) time.Duration {
	if _, err := r.serverTime().Skew(); err != nil || obj.DeletionTimestamp != nil {
		return 0
	}
	now := r.serverTime().Now()
	next := r.next(obj, now)
	if next.at.IsZero() {
		return 0
	}
	return max(0, now.Sub(next.at))
}

func (r *Reconciler) serverTime() *servertime.Clock {
	if r.ServerTime == nil {
		return servertime.Of(r.Clock)
	}
	return r.ServerTime
}

// step is the next step for a request: a deletion or another check, at an instant. A zero instant means no step.
type step struct {
	at     time.Time
	reason string
	newer  pending.Request // which supersedes the request
}

// The reasons for a deletion.
const (
	reasonDue        = "Due"
	reasonSuperseded = "Superseded"
)

// next returns the earliest step. If its instant has passed, the step is a deletion.
func (r *Reconciler) next(obj *certificatesv1.CertificateSigningRequest, now time.Time) step {
	first := step{reason: reasonDue}
	first.at, _ = r.Retention.Deadline(obj)
	at, newer := r.superseded(obj, now)
	if !at.IsZero() && (first.at.IsZero() || at.Before(first.at)) {
		first = step{at: at, reason: reasonSuperseded, newer: newer}
	}
	return first
}

// delete deletes obj only if it has not changed. Another UID is another request. Another resourceVersion is a change, which
// the watch brings to the queue. If nothing has changed, the answer was wrong, and delete tries again.
func (r *Reconciler) delete(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, why step) (reconcile.Result, error) {
	state := csr.StateOf(obj)
	if r.DryRun {
		r.reportDue(ctx, obj, state, why)
		return reconcile.Result{}, nil
	}
	if err := r.Limiter.Wait(ctx); err != nil {
		return reconcile.Result{}, fmt.Errorf("wait for the deletion rate: %w", err)
	}
	err := r.Client.Delete(ctx, obj, client.Preconditions{UID: &obj.UID, ResourceVersion: &obj.ResourceVersion})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: retryAfter}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("delete request: %w", err)
	}
	deletedTotal.WithLabelValues(string(state), why.reason).Inc()
	log.FromContext(ctx).Info("Deleted",
		"uid", obj.UID, "signer", obj.Spec.SignerName, "state", state, "reason", why.reason)
	return reconcile.Result{}, nil
}

// reportDue reports, once, that obj would be deleted.
func (r *Reconciler) reportDue(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, state csr.State, why step,
) {
	message := fmt.Sprintf("%s: the request is %s and due for deletion since %s",
		why.reason, state, why.at.UTC().Format(time.RFC3339))
	if !r.Reporter.Would(obj, obj.Spec.Username, "Clean", "WouldDelete", message) {
		return
	}
	dryRunTotal.WithLabelValues(string(state), why.reason).Inc()
	log.FromContext(ctx).Info("Would delete",
		"uid", obj.UID, "signer", obj.Spec.SignerName, "state", state, "reason", why.reason)
}
