package approver

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/requestcache"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

type workQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func queueKey(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// mostWoken is how many requests of one requester for one node are woken, the newest first. A kubelet waits only for
// its last request. A node may keep thousands pending; without this bound each change of the node would cause all of
// them to be judged and logged. The others are judged within a minute.
const mostWoken = 3

// rememberedKeys bounds the Keys whose newest request is cached. An entry outlives its request.
const rememberedKeys = 50_000

// requestInfo holds what the queue and wake-ups need of a request. A request's spec never changes, so it is read once.
// requestInfo holds no text that a requester chose.
type requestInfo struct {
	pending.Request
	sans []uint64 // digests of the requested names and addresses, unless only the stripped request was at hand
}

// pendingIndex holds the requests that the work queue may hold, and which of them may be woken. A request leaves the
// index when it is deleted or needs no more work. The zero value is empty. It is safe for concurrent use.
type pendingIndex struct {
	// undecided holds the requests that may be woken, so a wake-up costs nothing for decided requests. For a node with
	// thousands of requests it costs no more than for a node with ten.
	undecided pending.Index

	mu       sync.Mutex
	requests map[string]requestInfo
	newest   *lru.Cache // pending.Key → creation of its newest request
}

// add adds obj. It reads the spec of obj unless the index already holds it.
func (p *pendingIndex) add(
	obj *certificatesv1.CertificateSigningRequest, requests *requestcache.Cache, limits csr.Limits, undecided bool,
) {
	p.mu.Lock()
	info, known := p.requests[obj.Name]
	p.mu.Unlock()
	if !known || info.UID != obj.UID {
		var req *csr.Request
		if csr.Stripped(obj) {
			req, _ = limits.Supersedable(obj)
		} else {
			req, _ = requests.Parse(obj, limits)
		}
		info = requestInfo{Request: pending.Of(obj, req)}
		if req != nil {
			for _, name := range san.Of(req.Cert.DNSNames, req.Cert.IPAddresses) {
				info.sans = append(info.sans, digestOf(name))
			}
		}
		p.mu.Lock()
		if p.requests == nil {
			p.requests, p.newest = map[string]requestInfo{}, lru.New(rememberedKeys)
		}
		p.requests[obj.Name] = info
		if last, found := p.newest.Get(info.Key); !found || last.(time.Time).Before(info.Created) {
			p.newest.Add(info.Key, info.Created)
		}
		p.mu.Unlock()
	}
	if undecided {
		p.undecided.Put(info.Request)
	} else {
		p.undecided.Remove(obj.Name)
	}
}

// remove removes the named request, so that it is no longer woken.
func (p *pendingIndex) remove(name string) {
	p.undecided.Remove(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.requests, name)
}

// find returns what determines the request's position in the queue. It must not block, because the queue holds its
// lock.
func (p *pendingIndex) find(name string) (pending.Request, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	info, found := p.requests[name]
	return info.Request, found
}

// holds reports whether the index holds obj itself, not another request with the same name.
func (p *pendingIndex) holds(obj *certificatesv1.CertificateSigningRequest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	info, found := p.requests[obj.Name]
	return found && info.UID == obj.UID
}

// superseded reports whether a newer request of the same requester for the same node and signer has been observed.
// That holds even if the newer request is decided or deleted: its requester no longer waits for an older one. Creation
// times are in whole seconds. So of the requests of one second, all but the newest few are superseded too.
func (p *pendingIndex) superseded(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	info, found := p.requests[name]
	if !found {
		return false
	}
	if newest, found := p.newest.Get(info.Key); found && newest.(time.Time).After(info.Created) {
		return true
	}
	return p.undecided.Newer(name) >= mostWoken
}

// woken returns the newest undecided requests of each requester for each node, up to most each. It omits requests for
// which waits returns false.
func (p *pendingIndex) woken(most int, waits func(requestInfo) bool) []reconcile.Request {
	newest := p.undecided.Newest(most)
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []reconcile.Request
	for _, request := range newest {
		if info, known := p.requests[request.Name]; known && waits(info) {
			found = append(found, queueKey(request.Name))
		}
	}
	return found
}

var digestSeed = maphash.MakeSeed()

// digestOf returns a short digest of name, because a requester may choose long names. Requests for two names with the
// same digest are woken together.
func digestOf(name san.SAN) uint64 { return maphash.Comparable(digestSeed, name) }

// gatherNodes and gatherFreed are the delays of debouncers. When a thousand nodes join, their requests are looked up
// once, not once per node. The delay for freed names and addresses is longer, because any node may claim and release
// requested names as often as it likes.
const (
	gatherNodes = 100 * time.Millisecond
	gatherFreed = 300 * time.Millisecond
)

// debouncer collects changes, and passes them on together. It collects nothing before its source runs, because a
// standby would collect without end. A controller that starts judges every request anyway.
type debouncer[K comparable] struct {
	delay time.Duration
	also  func(K) // called with each key at once, if set

	mu      sync.Mutex
	runs    bool
	changes map[K]bool
	changed chan struct{}
}

func newDebouncer[K comparable](delay time.Duration) *debouncer[K] {
	return &debouncer[K]{delay: delay, changes: map[K]bool{}, changed: make(chan struct{}, 1)}
}

// add records that each of keys has changed.
func (d *debouncer[K]) add(keys ...K) {
	for _, key := range keys {
		if d.also != nil {
			d.also(key)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.runs {
		return
	}
	for _, key := range keys {
		d.changes[key] = true
	}
	select {
	case d.changed <- struct{}{}:
	default: // the goroutine of source is already notified
	}
}

// take returns the changes since the last call.
func (d *debouncer[K]) take() map[K]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := d.changes
	d.changes = map[K]bool{}
	return taken
}

// source returns a source that calls enqueue with the collected changes.
func (d *debouncer[K]) source(enqueue func(workQueue, map[K]bool)) source.Source {
	return source.Func(func(ctx context.Context, queue workQueue) error {
		d.mu.Lock()
		d.runs = true
		d.mu.Unlock()
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-d.changed:
				}
				if d.delay > 0 { // even a timer of no delay costs time
					select {
					case <-ctx.Done():
						return
					case <-time.After(d.delay):
					}
				}
				enqueue(queue, d.take())
			}
		}()
		return nil
	})
}

// wakeUps holds the debouncers that wake waiting requests.
type wakeUps struct {
	nodes    *debouncer[string] // node names; an empty name means all nodes
	freed    *debouncer[uint64] // digests of names and addresses that became free
	answered *debouncer[string] // names of requests for which a slow source or a review has an answer
}

func newWakeUps() wakeUps {
	return wakeUps{newDebouncer[string](gatherNodes), newDebouncer[uint64](gatherFreed), newDebouncer[string](0)}
}

func (w wakeUps) node(name string) { w.nodes.add(name) }

func (w wakeUps) free(names []san.SAN) {
	digests := make([]uint64, len(names))
	for i, name := range names {
		digests[i] = digestOf(name)
	}
	if len(digests) > 0 {
		w.freed.add(digests...)
	}
}

// enqueueAnswered enqueues requests that waited for an answer. They resume (pending.Queue), so that the answer is used
// while it is fresh.
func (r *Reconciler) enqueueAnswered(queue workQueue, requests map[string]bool) {
	for name := range requests {
		if r.queue != nil {
			r.queue.Resume(name)
		}
		queue.Add(queueKey(name))
	}
}

// enqueueNodes enqueues the undecided requests for nodes, if their rule uses the inventory.
func (r *Reconciler) enqueueNodes(queue workQueue, nodes map[string]bool) {
	digests := map[pending.Digest]bool{}
	for node := range nodes {
		digests[pending.DigestOf(node)] = true
	}
	r.enqueueWaiting(queue, mostWoken, func(info requestInfo) bool { return nodes[""] || digests[info.Node] })
}

// enqueueFreed enqueues the undecided requests for any name or address in freed.
func (r *Reconciler) enqueueFreed(queue workQueue, freed map[uint64]bool) {
	r.enqueueWaiting(queue, mostWoken, func(info requestInfo) bool {
		return slices.ContainsFunc(info.sans, func(san uint64) bool { return freed[san] })
	})
}

// enqueueWaiting enqueues undecided requests for which waits returns true, if their rule uses the inventory. It
// enqueues the newest requests of each requester for each node, up to most each.
func (r *Reconciler) enqueueWaiting(queue workQueue, most int, waits func(requestInfo) bool) {
	looksUp := map[string]bool{}
	for _, rule := range r.Rules {
		looksUp[rule.SignerName] = rule.looksUp()
	}
	for _, key := range r.index.woken(most, func(info requestInfo) bool { return looksUp[info.Signer] && waits(info) }) {
		queue.Add(key)
	}
}

// enqueueUndecided enqueues all undecided requests.
func (r *Reconciler) enqueueUndecided(_ context.Context, queue workQueue) {
	for _, request := range r.index.undecided.All() {
		queue.Add(queueKey(request.Name))
	}
}
