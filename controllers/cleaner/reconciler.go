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
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/apicall"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
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
	// SupersededAfter is how long a pending request of a node is kept after the same requester has made a newer one that
	// is pending too; zero is as long as any other.
	SupersededAfter time.Duration
	// RequestLimits bound what is read of a request.
	RequestLimits csr.Limits
	// DryRun deletes nothing and says what would be deleted.
	DryRun bool

	Client client.Client
	Clock  clock.PassiveClock
	// ServerTime, if set, is the time by which ages count; it is Clock's when nil.
	ServerTime *servertime.Clock
	// Reporter is used by a dry run only.
	Reporter *report.Reporter

	pending supersedable
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
			DeleteFunc: func(gone event.DeleteEvent) bool {
				r.Reporter.Forget(gone.Object)
				return false // there is nothing left to delete
			},
		})).
		WithOptions(options).
		Complete(r)
}

// Reconcile deletes one request, or comes back when it is due.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, key)
	if err != nil {
		errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
	}
	return apicall.Requeue(ctx, result, err)
}

func (r *Reconciler) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// The cache's own object: nothing of it is changed.
	if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if obj.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if _, err := r.serverTime().Skew(); err != nil { // nothing is deleted too early
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	now := r.serverTime().Now()
	next, err := r.next(ctx, obj, now)
	if err != nil || next.at.IsZero() {
		return reconcile.Result{}, err
	}
	if left := next.at.Sub(now); left >= 0 {
		// It is due once the instant has passed.
		return reconcile.Result{RequeueAfter: min(left+time.Millisecond, longestTimer)}, nil
	}
	return reconcile.Result{}, r.delete(ctx, obj, next)
}

// longestTimer bounds every wait. A deadline that was computed by a wrong clock is computed again.
const longestTimer = 10 * time.Minute

func (r *Reconciler) serverTime() *servertime.Clock {
	if r.ServerTime == nil {
		return servertime.Of(r.Clock)
	}
	return r.ServerTime
}

// step is what is next for a request: at that instant, if it is not zero, it is due or to be looked at again.
type step struct {
	at     time.Time
	reason string
}

// The reasons for a deletion.
const (
	reasonDue        = "Due"
	reasonSuperseded = "Superseded"
)

// next returns what comes first. An instant that has passed is that of a deletion.
func (r *Reconciler) next(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time,
) (step, error) {
	first := step{reason: reasonDue}
	first.at, _ = r.Retention.Deadline(obj)
	at, err := r.superseded(ctx, obj, now)
	if err != nil {
		return step{}, err
	}
	if !at.IsZero() && (first.at.IsZero() || at.Before(first.at)) {
		first = step{at: at, reason: reasonSuperseded}
	}
	return first, nil
}

// delete removes exactly what was judged: with another UID it is another request, with another resourceVersion it has
// changed, and the watch brings it again.
func (r *Reconciler) delete(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, why step) error {
	state := csr.StateOf(obj)
	if r.DryRun {
		r.reportDue(ctx, obj, state, why)
		return nil
	}
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
	deletedTotal.WithLabelValues(string(state), why.reason).Inc()
	log.FromContext(ctx).Info("Deleted",
		"uid", obj.UID, "signer", obj.Spec.SignerName, "state", state, "reason", why.reason)
	return nil
}

// reportDue reports once that obj would be deleted.
func (r *Reconciler) reportDue(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, state csr.State, why step,
) {
	message := fmt.Sprintf("%s: it is %s, and due since %s", why.reason, state, why.at.UTC().Format(time.RFC3339))
	if !r.Reporter.Would(obj, obj.Spec.Username, "Clean", "WouldDelete", message) {
		return
	}
	dryRunTotal.WithLabelValues(string(state), why.reason).Inc()
	log.FromContext(ctx).Info("Would delete",
		"uid", obj.UID, "signer", obj.Spec.SignerName, "state", state, "reason", why.reason)
}
