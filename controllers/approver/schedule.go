package approver

import (
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// place is where a request stands in the order: who asks, for which node, and since when.
type place struct {
	requester, node string
	created         time.Time
}

// schedule is the order in which requests are worked on: in turn for each requester, for each of them in turn for each
// node that is asked for, and there the newest first, as a kubelet waits for its last request only. So one with
// thousands of requests delays nobody by more than one. It is the storage of a work queue.
type schedule struct {
	place func(reconcile.Request) place

	mu         sync.Mutex
	requesters rotation[string, *rotation[string, *newest]]
	count      int
}

var _ workqueue.Queue[reconcile.Request] = &schedule{}

func newSchedule(where func(reconcile.Request) place) *schedule { return &schedule{place: where} }

// Push adds an item that is not there.
func (s *schedule) Push(key reconcile.Request) {
	at := s.place(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes := s.requesters.get(at.requester, func() *rotation[string, *newest] { return &rotation[string, *newest]{} })
	nodes.get(at.node, func() *newest { return &newest{} }).add(key, at.created)
	s.count++
}

// Touch is called for an item that is there already: its place does not change.
func (*schedule) Touch(reconcile.Request) {}

// Len is the number of items.
func (s *schedule) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Pop takes the next item; there must be one.
func (s *schedule) Pop() reconcile.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes := s.requesters.first()
	requests := nodes.first()
	key := requests.take()
	nodes.turn(len(requests.items) > 0)
	s.requesters.turn(len(nodes.order) > 0)
	s.count--
	return key
}

// rotation holds values in the order in which it is their turn.
type rotation[K comparable, V any] struct {
	order  []K
	values map[K]V
}

// get returns the value of key, which becomes the last in order if it is new.
func (r *rotation[K, V]) get(key K, make func() V) V {
	if value, found := r.values[key]; found {
		return value
	}
	if r.values == nil {
		r.values = map[K]V{}
	}
	r.values[key] = make()
	r.order = append(r.order, key)
	return r.values[key]
}

// first is whose turn it is.
func (r *rotation[K, V]) first() V { return r.values[r.order[0]] }

// turn makes the first one the last, or drops it.
func (r *rotation[K, V]) turn(stays bool) {
	key := r.order[0]
	r.order = r.order[1:]
	if stays {
		r.order = append(r.order, key)
	} else {
		delete(r.values, key)
	}
}

// newest gives back the newest of its items first, and of those of one age the one that was added last.
type newest struct{ items []aged }

type aged struct {
	key     reconcile.Request
	created time.Time
}

func (n *newest) add(key reconcile.Request, created time.Time) {
	at, _ := slices.BinarySearchFunc(n.items, created, func(item aged, created time.Time) int {
		if item.created.After(created) {
			return 1
		}
		return -1
	})
	n.items = slices.Insert(n.items, at, aged{key, created})
}

func (n *newest) take() reconcile.Request {
	last := len(n.items) - 1
	key := n.items[last].key
	n.items = n.items[:last]
	return key
}

// index is where an item is, or -1.
func (n *newest) index(key reconcile.Request, created time.Time) int {
	at, _ := slices.BinarySearchFunc(n.items, created, func(item aged, created time.Time) int { return item.created.Compare(created) })
	for ; at < len(n.items) && n.items[at].created.Equal(created); at++ {
		if n.items[at].key == key {
			return at
		}
	}
	return -1
}

func (n *newest) remove(key reconcile.Request, created time.Time) {
	if at := n.index(key, created); at >= 0 {
		n.items = slices.Delete(n.items, at, at+1)
	}
}
