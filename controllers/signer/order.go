package signer

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/fairqueue"
)

// Schedule returns the order in which a work queue of this controller gives requests out.
func (r *Reconciler) Schedule() workqueue.Queue[reconcile.Request] { return fairqueue.New(r.places.Of) }

// queued returns the events that queue a request.
func (r *Reconciler) queued() predicate.Predicate {
	events := predicate.NewPredicateFuncs(r.queues)
	events.UpdateFunc = func(change event.UpdateEvent) bool {
		foreign := r.gotForeign(change.ObjectOld, change.ObjectNew)
		return r.queues(change.ObjectNew) || foreign
	}
	events.DeleteFunc = func(gone event.DeleteEvent) bool {
		name := gone.Object.GetName()
		r.places.Drop(name)
		r.attempts.Drop(name)
		r.ended.Drop(name)
		r.failures.Drop(name)
		r.certificates.drop(name)
		r.Reporter.Forget(gone.Object)
		return false
	}
	return events
}

// queues reports whether obj is queued, and keeps its place in the queue for as long as it may be.
func (r *Reconciler) queues(obj client.Object) bool {
	request, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if !ok || !r.signable(request) && (!r.DryRun || !r.rehearsable(request)) {
		r.places.Drop(obj.GetName())
		return false
	}
	r.places.Keep(request, func() fairqueue.Place { return r.placeOf(request) })
	return true
}

// placeOf returns the place of obj in the queue: that of its requester and of the node that its subject names.
func (r *Reconciler) placeOf(obj *certificatesv1.CertificateSigningRequest) fairqueue.Place {
	place := fairqueue.Place{Requester: fairqueue.DigestOf(obj.Spec.Username), Created: obj.CreationTimestamp.Time}
	if req, err := r.RequestLimits.Parse(obj); err == nil {
		place.Node = fairqueue.DigestOf(req.NodeName())
	}
	return place
}
