package approver

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/approval,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client-kubelet,verbs=approve
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager sets nil fields and registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.Options) error {
	r.fill(mgr)
	if err := r.check(); err != nil {
		return err
	}
	for _, rule := range r.Rules { // a histogram needs to exist before its first event, for its rate
		createdToApproved.WithLabelValues(rule.SignerName)
	}
	r.Requests.Want(r.RequestLimits, func(obj *certificatesv1.CertificateSigningRequest) bool {
		return r.rule(obj) != nil || r.DryRun && r.ours(obj)
	})
	r.limiter = newLimiter(r.Limit, r.Clock)
	wake := newWakeUps()
	wake.answered.also = r.Answered
	ctrl := builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(r.queued())).
		WatchesRawSource(wake.answered.source(r.enqueueAnswered)).
		WithOptions(options)
	if err := r.setupReviews(mgr, wake); err != nil {
		return err
	}
	if r.BlockList != nil {
		// The block list changes rarely, so all undecided requests are judged again.
		ctrl.WatchesRawSource(r.BlockList.Source(r.enqueueUndecided))
	}
	if r.Inventory != nil {
		if err := r.setupInventory(mgr, ctrl, wake); err != nil {
			return err
		}
	}
	return ctrl.Complete(r)
}

// fill sets nil fields.
func (r *Reconciler) fill(mgr manager.Manager) {
	if r.Client == nil {
		r.Client = mgr.GetClient()
	}
	if r.Live == nil {
		r.Live = mgr.GetAPIReader()
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.ServerTime == nil {
		r.ServerTime = servertime.Of(r.Clock)
	}
	if r.Authorizer == nil {
		r.Authorizer = measured{authz.SubjectAccess{Client: r.Client}}
	}
	if r.Reporter == nil {
		r.Reporter = report.New(mgr.GetEventRecorder(Name), r.Clock)
	}
	if r.Denial == "" {
		r.Denial = DenialNever
	}
}

// setupReviews adds a pool of reviews for each permission to mgr. Renewals have a permission of their own, so they do
// not wait for the reviews of bootstrappers.
func (r *Reconciler) setupReviews(mgr manager.Manager, wake wakeUps) error {
	r.reviews = map[authorizationv1.ResourceAttributes]*pending.Calls[bool]{}
	for _, rule := range r.Rules {
		for _, recogniser := range rule.Recognisers {
			if r.reviews[recogniser.Permission] != nil {
				continue
			}
			reviews := &pending.Calls[bool]{
				Limit: cmp.Or(r.ReviewsAtOnce, defaultReviewsAtOnce), PerRequester: reviewsPerRequester,
				Timeout: reviewTimeout, MaxAge: reviewTimeout, Clock: r.Clock,
				Answered: func(request string) { wake.answered.add(request) },
			}
			if err := mgr.Add(reviews); err != nil {
				return fmt.Errorf("run reviews: %w", err)
			}
			r.reviews[recogniser.Permission] = reviews
		}
	}
	return nil
}

// setupInventory runs the inventory, and wakes the requests that wait for it.
func (r *Reconciler) setupInventory(mgr manager.Manager, ctrl *builder.Builder, wake wakeUps) error {
	if err := r.Inventory.setup(mgr, r.Rules, r.Clock, r.ServerTime, wake); err != nil {
		return err
	}
	if r.Inventory.apiServers != nil {
		comparison := &nodeComparison{inventory: r.Inventory, reporter: r.Reporter, log: mgr.GetLogger().WithName(Name)}
		if err := mgr.Add(comparison); err != nil {
			return fmt.Errorf("compare Nodes: %w", err)
		}
	}
	ctrl.WatchesRawSource(r.Inventory.firstRead(func(queue workQueue) {
		r.enqueueWaiting(queue, math.MaxInt, func(requestInfo) bool { return true })
	}))
	ctrl.WatchesRawSource(wake.nodes.source(r.enqueueNodes))
	ctrl.WatchesRawSource(wake.freed.source(r.enqueueFreed))
	return nil
}

// queued returns the predicate for the events that enqueue a request.
func (r *Reconciler) queued() predicate.Predicate {
	events := predicate.NewPredicateFuncs(r.queues)
	events.UpdateFunc = func(changed event.UpdateEvent) bool {
		// The watch skipped a deletion: this is another request of the same name.
		if old := changed.ObjectOld; old != nil && old.GetUID() != changed.ObjectNew.GetUID() {
			r.forget(old.GetUID())
		}
		return r.queues(changed.ObjectNew)
	}
	events.DeleteFunc = func(gone event.DeleteEvent) bool {
		queues := r.queues(gone.Object)
		r.Drop(gone.Object)
		return queues
	}
	return events
}

// Waits reports whether obj waits for a decision.
func (r *Reconciler) Waits(obj *certificatesv1.CertificateSigningRequest) bool {
	return r.rule(obj) != nil
}

// Track prepares r for a Reconcile of obj outside of the controller. Drop ends that.
func (r *Reconciler) Track(obj *certificatesv1.CertificateSigningRequest) { r.queues(obj) }

// Drop forgets obj, which was deleted or needs no Reconcile any more.
func (r *Reconciler) Drop(obj client.Object) {
	r.index.remove(obj.GetName())
	r.paces.forget(obj.GetName())
	r.forget(obj.GetUID())
	r.Reporter.Forget(obj)
	r.written.Drop(obj.GetName())
}

// queues reports whether to enqueue obj. It also reads what determines the request's position, because nothing may be
// read while the queue holds its lock.
func (r *Reconciler) queues(obj client.Object) bool {
	request, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return false
	}
	undecided := r.rule(request) != nil
	if !undecided && (!r.DryRun || !r.ours(request)) {
		r.index.remove(request.Name)
		r.paces.forget(request.Name)
		r.forget(request.UID)
		return false
	}
	r.index.add(r.Requests.Held(request), r.Requests, r.RequestLimits, undecided)
	return true
}

// NewQueue returns the storage of the work queue. In that queue no requester delays the others.
func (r *Reconciler) NewQueue() workqueue.Queue[reconcile.Request] {
	r.queue = pending.NewQueue(r.index.find)
	return r.queue
}

// check returns all errors in fields without a default.
func (r *Reconciler) check() error {
	var errs []error
	if r.Denial != DenialNever && r.Denial != DenialPermanent {
		errs = append(errs, fmt.Errorf("denial %q is invalid: set it to %s or %s", r.Denial, DenialNever, DenialPermanent))
	}
	for _, rule := range r.Rules {
		if rule.Shape == nil && rule.Judge == nil {
			errs = append(errs, fmt.Errorf("the rule for signer %q has no Shape: set Shape or Judge", rule.SignerName))
		}
		for _, recogniser := range rule.Recognisers {
			if recogniser.Matches == nil {
				errs = append(errs, fmt.Errorf("recogniser %q of the rule for signer %q has no Matches: set it",
					recogniser.Name, rule.SignerName))
			}
		}
	}
	return errors.Join(errs...)
}
