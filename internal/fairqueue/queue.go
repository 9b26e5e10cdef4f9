// Package fairqueue is a work queue in which no requester delays another. Requesters take turns. The lanes of one
// requester, one for each node, take turns too. Of one lane the newest request goes first, because a kubelet waits only
// for its last request. One request of a lane is in progress at a time, and one requester holds at most half of the
// workers, so calls that hang for one requester leave the other half to everybody else.
package fairqueue

import (
	"cmp"
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
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

var (
	depth = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_queue_depth",
		Help: "CertificateSigningRequests that wait for a worker of the controller.",
	}, []string{"controller"})

	waited = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csr_queue_wait_seconds",
		Help:    "How long CertificateSigningRequests waited for a worker of the controller.",
		Buckets: []float64{0.001, 0.01, 0.1, 1, 5, 10, 30, 60, 300},
	}, []string{"controller"})
)

func init() { metrics.Registry.MustRegister(depth, waited) }

// Queue implements workqueue.TypedInterface. Create it with New.
type Queue struct {
	share  int // the most requests of one requester in progress
	clock  clock.PassiveClock
	depth  prometheus.Gauge
	waited prometheus.Observer

	mu         sync.Mutex
	changed    *sync.Cond
	added      map[Key]time.Time // the queued keys, and those to queue again when they are done
	working    sets.Set[Key]
	lanes      map[uint64]*lane      // those with queued keys, or one in progress
	requesters map[uint64]*requester // those of lanes
	turns      []*requester          // those with queued keys, the next one first
	pushed     uint64                // how many keys lanes were given
	closed     bool
}

var _ workqueue.TypedInterface[Key] = &Queue{}

type requester struct {
	turns []*lane // those with queued keys, the next one first
	busy  int     // keys in progress
}

type lane struct {
	keys newestFirst // the queued ones
	busy bool        // a key is in progress
}

// numbered is a key with the number of its arrival.
type numbered struct {
	Key
	number uint64
}

// newestFirst implements heap.Interface, because one requester may fill one lane. Of two keys that were created in the
// same second, the one that was added later is newer.
type newestFirst []numbered

func (n newestFirst) Len() int      { return len(n) }
func (n newestFirst) Swap(i, j int) { n[i], n[j] = n[j], n[i] }
func (n newestFirst) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(n[i].Created, n[j].Created), cmp.Compare(n[i].number, n[j].number)) > 0
}

// Push implements heap.Interface.
func (n *newestFirst) Push(key any) { *n = append(*n, key.(numbered)) }

// Pop implements heap.Interface.
func (n *newestFirst) Pop() any {
	last := len(*n) - 1
	key := (*n)[last]
	*n = (*n)[:last]
	return key
}

// New returns an empty Queue for a controller with that many workers. The controller's name is a label of the metrics.
func New(controller string, workers int) *Queue {
	q := &Queue{
		share: max(1, workers/2), clock: clock.RealClock{},
		depth: depth.WithLabelValues(controller), waited: waited.WithLabelValues(controller),
		added: map[Key]time.Time{}, working: sets.Set[Key]{}, lanes: map[uint64]*lane{}, requesters: map[uint64]*requester{},
	}
	q.depth.Set(0)
	q.changed = sync.NewCond(&q.mu)
	return q
}

// Add queues key, unless it is queued already. A key in progress is queued again when it is done.
func (q *Queue) Add(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.added[key]; known || q.closed {
		return
	}
	q.added[key] = q.clock.Now()
	q.depth.Inc()
	if !q.working.Has(key) {
		q.push(key)
		q.changed.Signal()
	}
}

// push gives key to its lane. The caller holds mu.
func (q *Queue) push(key Key) {
	in, from := q.lanes[key.Lane], q.requesters[key.Requester]
	if from == nil {
		from = &requester{}
		q.requesters[key.Requester] = from
	}
	if in == nil {
		in = &lane{}
		q.lanes[key.Lane] = in
	}
	q.pushed++
	heap.Push(&in.keys, numbered{key, q.pushed})
	if len(in.keys) == 1 {
		from.turns = append(from.turns, in)
		if len(from.turns) == 1 {
			q.turns = append(q.turns, from)
		}
	}
}

// pop takes the next key that a worker may have, if there is one. It passes over few lanes and requesters, because each
// of those holds a worker. The caller holds mu.
func (q *Queue) pop() (key Key, found bool) {
	for turn, from := range q.turns {
		free := slices.IndexFunc(from.turns, func(in *lane) bool { return !in.busy })
		if from.busy == q.share || free < 0 {
			continue
		}
		in := from.turns[free]
		key = heap.Pop(&in.keys).(numbered).Key
		in.busy = true
		from.busy++
		from.turns = slices.Delete(from.turns, free, free+1)
		if len(in.keys) > 0 {
			from.turns = append(from.turns, in)
		}
		q.turns = slices.Delete(q.turns, turn, turn+1)
		if len(from.turns) > 0 {
			q.turns = append(q.turns, from)
		}
		return key, true
	}
	return Key{}, false
}

// Get blocks until a key may be worked on. Call Done with it afterwards. shutdown is true when the queue is shut down,
// even if keys are queued: the next leader finds their requests in its cache.
func (q *Queue) Get() (key Key, shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed {
		key, found := q.pop()
		if !found {
			q.changed.Wait()
			continue
		}
		q.waited.Observe(q.clock.Since(q.added[key]).Seconds())
		q.depth.Dec()
		delete(q.added, key)
		q.working.Insert(key)
		return key, false
	}
	return Key{}, true
}

// Done ends the work on key, and frees its lane and its worker.
func (q *Queue) Done(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.working.Has(key) {
		return
	}
	q.working.Delete(key)
	in, from := q.lanes[key.Lane], q.requesters[key.Requester]
	in.busy = false
	if len(in.keys) == 0 {
		delete(q.lanes, key.Lane)
	}
	from.busy--
	if from.busy == 0 && len(from.turns) == 0 {
		delete(q.requesters, key.Requester)
	}
	if _, again := q.added[key]; again {
		q.push(key)
	}
	q.changed.Broadcast()
}

// Len returns the number of queued keys.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.added)
}

// ShutDown makes Add ignore further keys, and Get return at once.
func (q *Queue) ShutDown() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Broadcast()
}

// ShutDownWithDrain is ShutDown, and waits until the keys in progress are done.
func (q *Queue) ShutDownWithDrain() {
	q.ShutDown()
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.working) > 0 {
		q.changed.Wait()
	}
}

// ShuttingDown reports whether the queue is shut down.
func (q *Queue) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}
