package approver

import (
	"context"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// gather is how long changes are gathered before requests are looked through for those that wait for them: when a
// thousand nodes join, not once for each.
const gather = 100 * time.Millisecond

// waker wakes the requests that wait for what is known of a node.
type waker struct {
	mu      sync.Mutex
	nodes   map[string]bool
	changed chan struct{}
}

func newWaker() *waker {
	return &waker{nodes: map[string]bool{}, changed: make(chan struct{}, 1)}
}

// wake notes that something about node has changed; an empty name stands for any node.
func (w *waker) wake(node string) {
	w.mu.Lock()
	w.nodes[node] = true
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default: // already on its way
	}
}

// take returns what has changed since the last time.
func (w *waker) take() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.nodes
	w.nodes = map[string]bool{}
	return taken
}

// source enqueues requests as their nodes change.
func (r *Reconciler) wakeSource(w *waker) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-w.changed:
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(gather):
				}
				r.enqueueFor(ctx, w.take(), queue)
			}
		}()
		return nil
	})
}

// enqueueFor enqueues the undecided requests of rules that look things up.
func (r *Reconciler) enqueueFor(ctx context.Context, nodes map[string]bool, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := r.Client.List(ctx, requests, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "List requests that wait for a change") // they are looked at again within a minute
		return
	}
	for i := range requests.Items {
		obj := &requests.Items[i]
		rule := r.rule(obj)
		if rule == nil || !rule.looksUp() {
			continue
		}
		if req, err := csr.Parse(obj); err == nil && (nodes[""] || nodes[req.NodeName()]) {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: obj.Name}})
		}
	}
}
