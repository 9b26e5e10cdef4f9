// Package fairqueue orders the work of a controller, so that no requester delays the others.
package fairqueue

import (
	"hash/maphash"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Digest stands for a name that a requester chose. It is short, whatever the name's length.
type Digest uint64

var seed = maphash.MakeSeed()

// DigestOf returns the Digest of name in this process. The empty name has the zero Digest.
func DigestOf(name string) Digest {
	if name == "" {
		return 0
	}
	return Digest(maphash.String(seed, name))
}

// Place says where a request stands in the order: its requester, its node, and its creation. The zero Place is the one of
// a request of which nothing is known.
type Place struct {
	Requester, Node Digest
	Created         time.Time
}

// Queue is the storage of a work queue. Requesters have their turns one after another. So do the nodes of one requester.
// For one node the newest request goes first, because a kubelet waits for its last request only. A requester with
// thousands of requests therefore delays another requester by one request at most.
type Queue struct {
	place func(reconcile.Request) Place

	mu         sync.Mutex
	requesters rotation[*rotation[*Newest]]
	count      int
}

var _ workqueue.Queue[reconcile.Request] = &Queue{}

// New returns an empty Queue. It calls place while the work queue is locked, so place must not block.
func New(place func(reconcile.Request) Place) *Queue { return &Queue{place: place} }

// Push adds an item that is not in the Queue.
func (q *Queue) Push(key reconcile.Request) {
	at := q.place(key)
	q.mu.Lock()
	defer q.mu.Unlock()
	nodes := q.requesters.get(at.Requester, func() *rotation[*Newest] { return &rotation[*Newest]{} })
	nodes.get(at.Node, func() *Newest { return &Newest{} }).Add(key, at.Created)
	q.count++
}

// Touch is called for an item that is in the Queue already. The item keeps its place.
func (*Queue) Touch(reconcile.Request) {}

// Len returns the number of items.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count
}

// Pop removes the next item and returns it. The Queue must not be empty.
func (q *Queue) Pop() reconcile.Request {
	q.mu.Lock()
	defer q.mu.Unlock()
	nodes := q.requesters.first()
	requests := nodes.first()
	key := requests.take()
	nodes.turn(requests.Len() > 0)
	q.requesters.turn(len(nodes.order) > 0)
	q.count--
	return key
}

// rotation holds values in the order of their turns.
type rotation[V any] struct {
	order  []Digest
	values map[Digest]V
}

// get returns the value of key. A new key becomes the last in order.
func (r *rotation[V]) get(key Digest, create func() V) V {
	if value, found := r.values[key]; found {
		return value
	}
	if r.values == nil {
		r.values = map[Digest]V{}
	}
	r.values[key] = create()
	r.order = append(r.order, key)
	return r.values[key]
}

// first returns the value whose turn it is.
func (r *rotation[V]) first() V { return r.values[r.order[0]] }

// turn makes the first value the last, or drops it.
func (r *rotation[V]) turn(stays bool) {
	key := r.order[0]
	r.order = r.order[1:]
	if stays {
		r.order = append(r.order, key)
	} else {
		delete(r.values, key)
	}
}
