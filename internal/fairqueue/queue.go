// Package fairqueue is a work queue in which no requester delays another. Requesters take turns. The lanes of one
// requester, one for each node, take turns too. Of one lane the newest request goes first, because a kubelet waits only
// for its last request. One request of a lane is in progress at a time, and one requester holds at most half of the
// workers, so calls that hang for one requester leave the other half to everybody else.
package fairqueue

import (
	"container/heap"
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// Key identifies a request in a Queue. It holds no text that a requester chose, except the bounded name of the object.
type Key struct {
	Name string
	UID  types.UID
	// Requester and Lane are Digests: of the requester, and of the requester and its node.
	Requester, Lane uint64
	// Created is the creation time of the request, in seconds since 1970.
	Created int64
}

// KeyOf returns the key of obj. Requests of one requester for the same node share a lane. If node is empty, obj has a lane
// of its own.
func KeyOf(obj *certificatesv1.CertificateSigningRequest, node string) Key {
	key := Key{
		Name: obj.Name, UID: obj.UID, Created: obj.CreationTimestamp.Unix(),
		Requester: Digest(obj.Spec.Username), Lane: Digest("node", obj.Spec.Username, node),
	}
	if node == "" {
		key.Lane = Digest("request", obj.Name, string(obj.UID))
	}
	return key
}

// Queue is client-go's work queue with its keys in fair order. Create it with New.
type Queue struct {
	workqueue.TypedInterface[Key]
	order *order
}

// New returns an empty Queue for a controller with that many workers. The controller's name is a label of the metrics.
func New(controller string, workers int) *Queue {
	order := &order{share: max(1, workers/2), lanes: map[uint64]*lane{}, requesters: map[uint64]*requester{}}
	return &Queue{workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[Key]{Name: controller, Queue: order}), order}
}

// Done ends the work on key, and frees its lane and its worker. That permits one more key at most, and wakes no worker:
// the worker that calls Done calls Get next.
func (q *Queue) Done(key Key) {
	q.order.done(key)
	q.TypedInterface.Done(key)
}

// ShutDown makes Add ignore further keys, and Get return at once, even if keys are queued: the next leader finds their
// requests in its cache.
func (q *Queue) ShutDown() {
	q.order.mu.Lock()
	q.order.closed = true
	q.order.mu.Unlock()
	q.TypedInterface.ShutDown()
}

// order implements workqueue.Queue, which stores the queued keys.
type order struct {
	share int // the most requests of one requester in progress

	mu         sync.Mutex
	lanes      map[uint64]*lane      // those with queued keys, or one in progress
	requesters map[uint64]*requester // those of lanes
	turns      []*requester          // those with queued keys, the next one first
	closed     bool
}

type requester struct {
	turns []*lane // those with queued keys, the next one first
	busy  int     // keys in progress
}

type lane struct {
	keys newestFirst // the queued ones
	busy bool        // a key is in progress
}

// newestFirst implements heap.Interface, because one requester may fill one lane with 100,000 requests. Keys of the same
// second come in any order.
type newestFirst []Key

func (n newestFirst) Len() int           { return len(n) }
func (n newestFirst) Less(i, j int) bool { return n[i].Created > n[j].Created }
func (n newestFirst) Swap(i, j int)      { n[i], n[j] = n[j], n[i] }
func (n *newestFirst) Push(key any)      { *n = append(*n, key.(Key)) }

// Pop implements heap.Interface.
func (n *newestFirst) Pop() any {
	last := len(*n) - 1
	key := (*n)[last]
	*n = (*n)[:last]
	return key
}

// Touch implements workqueue.Queue. A key that is added again keeps its turn.
func (*order) Touch(Key) {}

// Push implements workqueue.Queue.
func (o *order) Push(key Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	in, from := o.lanes[key.Lane], o.requesters[key.Requester]
	if from == nil {
		from = &requester{}
		o.requesters[key.Requester] = from
	}
	if in == nil {
		in = &lane{}
		o.lanes[key.Lane] = in
	}
	heap.Push(&in.keys, key)
	if len(in.keys) == 1 {
		from.turns = append(from.turns, in)
		if len(from.turns) == 1 {
			o.turns = append(o.turns, from)
		}
	}
}

// next returns the positions of the requester and of the lane whose turn it is, or -1 if no key may be worked on now. It
// passes over few requesters and lanes, because each of those holds a worker. The caller holds mu.
func (o *order) next() (turn, free int) {
	turn = slices.IndexFunc(o.turns, func(from *requester) bool {
		free = slices.IndexFunc(from.turns, func(in *lane) bool { return !in.busy })
		return free >= 0 && from.busy < o.share
	})
	return turn, free
}

// Len implements workqueue.Queue, which only asks whether Pop may be called: Len is 1 if a key may be worked on now.
func (o *order) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if turn, _ := o.next(); turn < 0 || o.closed {
		return 0
	}
	return 1
}

// Pop implements workqueue.Queue. It returns the newest key of the lane whose turn it is.
func (o *order) Pop() Key {
	o.mu.Lock()
	defer o.mu.Unlock()
	turn, free := o.next()
	from := o.turns[turn]
	in := from.turns[free]
	key := heap.Pop(&in.keys).(Key)
	in.busy = true
	from.busy++
	from.turns = slices.Delete(from.turns, free, free+1)
	if len(in.keys) > 0 {
		from.turns = append(from.turns, in)
	}
	o.turns = slices.Delete(o.turns, turn, turn+1)
	if len(from.turns) > 0 {
		o.turns = append(o.turns, from)
	}
	return key
}

// done frees the lane and the worker of key.
func (o *order) done(key Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	in, from := o.lanes[key.Lane], o.requesters[key.Requester]
	in.busy = false
	if len(in.keys) == 0 {
		delete(o.lanes, key.Lane)
	}
	from.busy--
	if from.busy == 0 && len(from.turns) == 0 {
		delete(o.requesters, key.Requester)
	}
}
