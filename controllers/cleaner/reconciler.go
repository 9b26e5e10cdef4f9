// Package cleaner deletes CertificateSigningRequests of every signer when they are due. It approves and signs nothing.
package cleaner

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-cleaner"

// defaultEvery is the pause between two passes over the cache.
const defaultEvery = 10 * time.Second

// reasonDue is the reason of every deletion.
const reasonDue = "Due"

// deletedTotal counts deletions by the state that the request was in.
var deletedTotal = metric.Counter("csr_cleaner_deleted_total", "Deleted CertificateSigningRequests, by state.", "state", "reason")

var dryRunTotal = metric.Counter("csr_cleaner_dry_run_total",
	"CertificateSigningRequests that a dry run would have deleted, each once.", "state", "reason")

var errorsTotal = metric.Counter("csr_cleaner_errors_total", "Failed reconciles of the cleaner.", "reason")

// Reconciler deletes requests. SetupWithManager sets nil fields from the manager.
type Reconciler struct {
	// Retention says when requests are due.
	Retention csr.RetentionPolicy
	// Limiter bounds the rate of deletions; nil means 100 a second.
	Limiter flowcontrol.RateLimiter
	// DryRun deletes nothing and reports what it would delete.
	DryRun bool
	// Every is the pause between two passes over the cache, by the real clock; zero means ten seconds.
	Every time.Duration

	Client client.Client
	// Recorder records the Events of a dry run.
	Recorder events.EventRecorder
	// Workers is the number of requests in progress at a time; zero means 5.
	Workers int
	// Clock, if it is a clock.WithTicker, is the clock of the queue.
	Clock clock.PassiveClock
	// ServerTime is the clock by which ages count; nil means Clock.
	ServerTime *servertime.Clock

	reporter *report.Reporter
}

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=list;watch;delete

// SetupWithManager sets nil fields and registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	r.Client = cmp.Or(r.Client, mgr.GetClient())
	r.Clock = cmp.Or[clock.PassiveClock](r.Clock, clock.RealClock{})
	r.ServerTime = cmp.Or(r.ServerTime, servertime.Of(r.Clock))
	r.Limiter = cmp.Or(r.Limiter, flowcontrol.NewTokenBucketRateLimiter(call.DeletesPerSecond, call.DeletesPerSecond))
	r.reporter = report.New(cmp.Or[events.EventRecorder](r.Recorder, mgr.GetEventRecorder(Name)), r.Clock)
	options := fairqueue.Options(cmp.Or(r.Workers, call.CleanerWorkers), r.Clock)
	options.Reconciler = r
	options.LogConstructor = fairqueue.Logger(mgr, Name, func(key reconcile.Request) string { return key.Name })
	cleaner, err := controller.New(Name, mgr, options)
	if err != nil {
		return err
	}
	return cleaner.Watch(source.Func(func(ctx context.Context, queue queue) error {
		go r.enqueueDue(ctx, mgr.GetCache(), mgr.GetLogger().WithName(Name), queue)
		return nil
	}))
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// enqueueDue passes over the cache until ctx ends, and enqueues the requests that are due. A queue of all requests, each
// with its time, would need much more memory, and would not notice that the clock of the API servers was set.
func (r *Reconciler) enqueueDue(ctx context.Context, cached cache.Informers, logger logr.Logger, due queue) {
	store, err := informer.FromCache(ctx, cached, &certificatesv1.CertificateSigningRequest{}, logger, nil)
	if err != nil && ctx.Err() == nil {
		logger.Error(err, "Nothing is deleted")
		return
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) { r.pass(ctx, store, logger, due) }, cmp.Or(r.Every, defaultEvery))
}

// unreachableText is what pass reports about a request that is not csr.Reachable.
const unreachableText = "the name is too long for a URL, so this request cannot be deleted by its name: delete it with all requests for " +
	"its signer (docs/runbooks/stolen-credentials.md), and install config/request-limits"

// pass enqueues the requests in store that are due. The queue itself repeats those that have failed.
func (r *Reconciler) pass(ctx context.Context, store toolscache.Store, logger logr.Logger, due queue) {
	now, err := r.ServerTime.Now(ctx)
	if err != nil {
		return // nothing is due before the time is known
	}
	for _, each := range store.List() {
		obj, ok := each.(*certificatesv1.CertificateSigningRequest)
		if !ok || !r.due(obj, now) {
			continue
		}
		if !csr.Reachable(obj) {
			if r.reporter.Request(obj, "Clean", csr.ReasonTooLarge, unreachableText) { // once
				report.Warn(logger, "A request cannot be deleted", "reason", unreachableText,
					"uid", obj.UID, "signer", obj.Spec.SignerName, "requester", ascii.Quote(obj.Spec.Username))
			}
			continue
		}
		key := reconcile.Request{NamespacedName: types.NamespacedName{Name: obj.Name}}
		if due.NumRequeues(key) == 0 {
			due.Add(key)
		}
	}
}

// due reports whether obj is due for deletion. It is due after its deadline, not at it.
func (r *Reconciler) due(obj *certificatesv1.CertificateSigningRequest, now time.Time) bool {
	deadline, ok := r.Retention.Deadline(obj, now)
	return ok && obj.DeletionTimestamp == nil && now.After(deadline)
}

// Reconcile deletes a request that is due. It does nothing about any other request, because a pass finds it in time. An
// error goes to the work queue, which retries.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (_ reconcile.Result, err error) {
	defer func() {
		if err != nil {
			errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
		}
	}()
	obj := &certificatesv1.CertificateSigningRequest{}
	// This is the cache's own object, and must not be changed.
	err = r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil // it is gone
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read request: %w", err) // retried by the queue
	}
	timeNow := r.ServerTime.Now
	if !r.DryRun {
		if r.Limiter.Wait(ctx) != nil {
			return reconcile.Result{}, nil // the manager stops
		}
		// If the clock of the API servers was set back since their last answer, a new request seems to be old.
		timeNow = r.ServerTime.Fresh
	}
	now, err := timeNow(ctx)
	switch {
	case err != nil:
		return reconcile.Result{}, err // retried by the queue
	case !r.due(obj, now):
		return reconcile.Result{}, nil // a later pass finds it
	case r.DryRun:
		deadline, _ := r.Retention.Deadline(obj, now)
		message := fmt.Sprintf("%s: the request is %s and due for deletion since %s",
			reasonDue, csr.StateOf(obj), deadline.UTC().Format(time.RFC3339))
		if r.reporter.Would(obj, "Clean", "WouldDelete", message) { // once
			count(ctx, obj, dryRunTotal, "Would delete")
		}
		return reconcile.Result{}, nil // a later pass repeats it
	default:
		return reconcile.Result{}, r.delete(ctx, obj) // an error is retried by the queue
	}
}

// delete deletes obj only if it has not changed. Another UID is another request. Another resourceVersion is a change: a
// later pass finds the request if it is still due.
func (r *Reconciler) delete(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) error {
	err := call.Write[client.DeleteOption](ctx, r.Client.Delete, obj,
		client.Preconditions{UID: &obj.UID, ResourceVersion: &obj.ResourceVersion})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete request: %w", err)
	}
	count(ctx, obj, deletedTotal, "Deleted")
	return nil
}

// count counts obj in total and logs message about it.
func count(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, total *prometheus.CounterVec, message string) {
	state := csr.StateOf(obj)
	total.WithLabelValues(string(state), reasonDue).Inc()
	log.FromContext(ctx).Info(message, "uid", obj.UID, "signer", obj.Spec.SignerName, "state", state, "reason", reasonDue)
}
