package pending

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Queue is the storage of a work queue of requests, which have no namespace. Requesters take turns, and so do the
// nodes of one requester. For one node the newest request goes first, because a kubelet waits only for its last
// request. Every second request is one that was resumed, if there is any. The requesters of resumed requests take
// turns too. So a requester with thousands of requests delays another requester by two requests at most.
type Queue struct {
	find func(name string) (Request, bool)

	mu         sync.Mutex
	requesters roundRobin[*roundRobin[*ordered]]
	resumed    map[string]bool
	resuming   roundRobin[*[]reconcile.Request] // the resumed requests in the Queue, by requester
	wasResumed bool                             // whether the last popped request was resumed
	count      int
}

var _ workqueue.Queue[reconcile.Request] = &Queue{}

// NewQueue returns an empty Queue. It calls find while the work queue is locked, so find must not block. If find does
// not find a request, the zero Request determines its order.
func NewQueue(find func(name string) (Request, bool)) *Queue { return &Queue{find: find} }

// Resume gives the request of that name precedence over requests that were not resumed, when it is pushed the next
// time. The request had its turn, and had to wait for an answer.
func (q *Queue) Resume(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.resumed == nil {
		q.resumed = map[string]bool{}
	}
	q.resumed[name] = true
}

// Push adds an item that is not in the Queue.
func (q *Queue) Push(key reconcile.Request) {
	r, _ := q.find(key.Name)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count++
	if q.resumed[key.Name] {
		resuming := q.resuming.get(r.Requester, func() *[]reconcile.Request { return new([]reconcile.Request) })
		*resuming = append(*resuming, key)
		return
	}
	nodes := q.requesters.get(r.Requester, func() *roundRobin[*ordered] { return &roundRobin[*ordered]{} })
	nodes.get(r.Node, func() *ordered { return &ordered{} }).add(key.Name, r.Created)
}

// Touch is called for an item that is in the Queue already. The item keeps its position.
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
	q.count--
	if len(q.resuming.order) > 0 && (!q.wasResumed || len(q.requesters.order) == 0) {
		q.wasResumed = true
		resuming := q.resuming.first()
		key := (*resuming)[0]
		*resuming = (*resuming)[1:]
		q.resuming.next(len(*resuming) > 0)
		delete(q.resumed, key.Name)
		return key
	}
	q.wasResumed = false
	nodes := q.requesters.first()
	requests := nodes.first()
	name := requests.takeNewest()
	nodes.next(requests.count > 0)
	q.requesters.next(len(nodes.order) > 0)
	delete(q.resumed, name)
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// roundRobin holds values that take turns.
type roundRobin[V any] struct {
	order  []Digest
	values map[Digest]V
}

// get returns the value of key. A new key becomes the last in order.
func (r *roundRobin[V]) get(key Digest, create func() V) V {
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
func (r *roundRobin[V]) first() V { return r.values[r.order[0]] }

// next ends the turn of the first value. The value becomes the last, or is dropped.
func (r *roundRobin[V]) next(keep bool) {
	key := r.order[0]
	r.order = r.order[1:]
	if keep {
		r.order = append(r.order, key)
	} else {
		delete(r.values, key)
	}
}
