package approver

import (
	"context"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// Changes are gathered for a while before requests are looked through for those that wait for them: when a thousand nodes
// join, not once for each. What has become free is gathered for longer, as any node may claim and give up what others ask
// for, as often as it likes.
const (
	gatherNodes = 100 * time.Millisecond
	gatherFreed = 300 * time.Millisecond
)

// waker gathers what has changed. It gathers nothing before its source runs: a standby would gather for as long as it waits,
// and a controller that starts looks at every request anyway.
type waker[K comparable] struct {
	gather time.Duration

	mu      sync.Mutex
	runs    bool
	news    map[K]bool
	changed chan struct{}
}

func newWaker[K comparable](gather time.Duration) *waker[K] {
	return &waker[K]{gather: gather, news: map[K]bool{}, changed: make(chan struct{}, 1)}
}

// wake notes that something about each of about has changed.
func (w *waker[K]) wake(about ...K) {
	w.mu.Lock()
	runs := w.runs
	if runs {
		for _, each := range about {
			w.news[each] = true
		}
	}
	w.mu.Unlock()
	if !runs {
		return
	}
	select {
	case w.changed <- struct{}{}:
	default: // already on its way
	}
}

// take returns what has changed since the last time.
func (w *waker[K]) take() map[K]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.news
	w.news = map[K]bool{}
	return taken
}

// source calls enqueue with what has changed.
func (w *waker[K]) source(enqueue func(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request], map[K]bool)) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		w.mu.Lock()
		w.runs = true
		w.mu.Unlock()
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
				case <-time.After(w.gather):
				}
				enqueue(ctx, queue, w.take())
			}
		}()
		return nil
	})
}

// wakers wake the requests that wait for what is known of nodes.
type wakers struct {
	nodes *waker[string] // by name; an empty one stands for any
	freed *waker[uint64] // digests of what nobody has any more
}

func newWakers() wakers {
	return wakers{newWaker[string](gatherNodes), newWaker[uint64](gatherFreed)}
}

func (w wakers) node(name string) { w.nodes.wake(name) }

func (w wakers) free(sans []inventory.SAN) {
	if len(sans) == 0 {
		return
	}
	digests := make([]uint64, len(sans))
	for i, san := range sans {
		digests[i] = digest(san)
	}
	w.freed.wake(digests...)
}

// enqueueNodes enqueues the undecided requests for nodes, of rules that look things up.
func (r *Reconciler) enqueueNodes(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request], nodes map[string]bool) {
	digests := map[pending.Digest]bool{}
	for node := range nodes {
		digests[pending.DigestOf(node)] = true
	}
	r.enqueueWaiting(queue, func(about traits) bool { return nodes[""] || digests[about.Node] })
}

// enqueueFreed enqueues the undecided requests that ask for one of freed.
func (r *Reconciler) enqueueFreed(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request], freed map[uint64]bool) {
	r.enqueueWaiting(queue, func(about traits) bool {
		return slices.ContainsFunc(about.sans, func(san uint64) bool { return freed[san] })
	})
}

// mostWoken is how many requests of one requester for one node are woken, the newest, as a kubelet waits for its last one
// only: a node that keeps thousands pending would otherwise have them all looked at, and told of in the log, whenever it says
// something new. The others are looked at within a minute.
const mostWoken = 3

// enqueueWaiting enqueues the undecided requests of rules that look things up, if they wait for what has changed.
func (r *Reconciler) enqueueWaiting(queue workqueue.TypedRateLimitingInterface[reconcile.Request], waits func(traits) bool) {
	looksUp := map[string]bool{}
	for _, rule := range r.Rules {
		looksUp[rule.SignerName] = rule.looksUp()
	}
	for _, key := range r.places.woken(mostWoken, func(about traits) bool { return looksUp[about.Signer] && waits(about) }) {
		queue.Add(key)
	}
}

// enqueueUndecided enqueues all undecided requests.
func (r *Reconciler) enqueueUndecided(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := r.Client.List(ctx, requests, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "List requests that wait for a change") // they are looked at again within a minute
		return
	}
	for i := range requests.Items {
		if obj := &requests.Items[i]; r.rule(obj) != nil {
			r.places.of(obj)
			queue.Add(keyOf(obj.Name))
		}
	}
}

// settleTimeout bounds how long requests wait, at the start, until the inventory has been read: after that they are told
// that it can't be.
const settleTimeout = 10 * time.Second

// settling has a controller not begin before the inventory has been read, or said why it can't be.
type settling struct{ inventory *Inventory }

// Start implements source.Source.
func (settling) Start(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	return nil
}

// WaitForSync implements source.SyncingSource. It gives up in time, as an error would end the manager.
func (s settling) WaitForSync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !s.inventory.Tried(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
	return nil
}

// String is what the controller's log says of it.
func (settling) String() string { return "inventory" }
