package cleaner

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
)

// The queue holds only requests that become due within horizon. A search of the whole cache finds the others in time.
// With a timer for each request, 500,000 requests would take more memory, and each would be reconciled for nothing.
const (
	searchEvery = 5 * time.Minute
	horizon     = searchEvery + time.Minute
	// searchTick is the pause between two looks at the clocks. A test may step a fake one.
	searchTick = 200 * time.Millisecond
)

type controllerQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// ready reports whether requests can be judged: the API servers' time is known, and the index is complete.
func (r *Reconciler) ready() bool {
	_, err := r.serverTime().Skew()
	return err == nil && (r.SupersededAfter <= 0 || r.pending.complete.Load())
}

// soon reports whether obj is due within horizon. While requests can't be judged it returns false: a search follows
// when they can.
func (r *Reconciler) soon(obj client.Object) bool {
	request, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if !ok || request.DeletionTimestamp != nil || !r.ready() {
		return false
	}
	now := r.serverTime().Now()
	next := r.next(request, now)
	return !next.at.IsZero() && next.at.Sub(now) <= horizon
}

// search puts the requests that are due within horizon into the queue until ctx ends: every searchEvery by the API
// servers' time, when that time steps back, and when requests can be judged again.
func (r *Reconciler) search(ctx context.Context, cached cache.Informers, log logr.Logger, queue controllerQueue) {
	requests, err := informer.FromCache(ctx, cached, &certificatesv1.CertificateSigningRequest{}, log, nil)
	stored, ok := requests.(interface{ GetStore() toolscache.Store })
	if err != nil || !ok || !toolscache.WaitForCacheSync(ctx.Done(), requests.HasSynced) {
		return // ctx has ended
	}
	ticker := time.NewTicker(searchTick)
	defer ticker.Stop()
	var last time.Time // zero after a time when nothing could be judged
	for {
		now := r.serverTime().Now()
		if !r.ready() {
			last = time.Time{}
		} else if now.Before(last) || now.Sub(last) >= searchEvery {
			last = now
			r.enqueueDue(stored.GetStore(), queue)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *Reconciler) enqueueDue(store toolscache.Store, queue controllerQueue) {
	for _, obj := range store.List() {
		if request, ok := obj.(*certificatesv1.CertificateSigningRequest); ok && r.soon(request) {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: request.Name}})
		}
	}
}
