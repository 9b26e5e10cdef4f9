package approver

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// enqueueUndecided enqueues all requests that may wait for a change of the block list. It changes seldom, and there is no
// need to read them here to see which ones do.
func (r *Reconciler) enqueueUndecided(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := r.Client.List(ctx, requests, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "List requests that wait for a change of the block list") // they are looked at again within a minute
		return
	}
	for i := range requests.Items {
		if r.rule(&requests.Items[i]) != nil {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: requests.Items[i].Name}})
		}
	}
}
