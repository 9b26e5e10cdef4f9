package signer

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
)

// NewQueue returns the storage of this controller's work queue, in which no requester delays the others.
func (r *Reconciler) NewQueue() workqueue.Queue[reconcile.Request] {
	return pending.NewQueue(r.pending.Get)
}

// queued returns the events that queue a request.
func (r *Reconciler) queued() predicate.Predicate {
	events := predicate.NewPredicateFuncs(r.queues)
	events.UpdateFunc = func(change event.UpdateEvent) bool {
		foreign := r.gotForeign(change.ObjectOld, change.ObjectNew)
		return r.queues(change.ObjectNew) || foreign
	}
	events.DeleteFunc = func(gone event.DeleteEvent) bool {
		name := gone.Object.GetName()
		r.pending.Remove(name)
		r.attempts.Drop(name)
		r.ended.Drop(name)
		r.failures.Drop(name)
		r.certificates.drop(name)
		r.Reporter.Forget(gone.Object)
		return false
	}
	return events
}

// queues reports whether obj is queued, and keeps its position in the queue while it may be. It parses each request once.
func (r *Reconciler) queues(obj client.Object) bool {
	request, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if !ok || !r.signable(request) && (!r.DryRun || !r.rehearsable(request)) {
		r.pending.Remove(obj.GetName())
		return false
	}
	if known, found := r.pending.Get(request.Name); found && known.UID == request.UID {
		return true
	}
	req, err := r.RequestLimits.Parse(request)
	if err != nil {
		req = nil
	}
	r.pending.Put(pending.Of(request, req))
	return true
}
