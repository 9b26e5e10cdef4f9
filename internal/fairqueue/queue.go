// Package fairqueue is a work queue in which no requester delays another. Requesters take turns. The lanes of one
// requester, one for each node, take turns too. Of one lane the newest request goes first, because a kubelet waits only
// for its last request. One request of a lane is in progress at a time, and one requester holds at most half of the
// workers, so calls that hang for one requester leave the other half to everybody else.
package fairqueue

import (
	"cmp"
	"container/heap"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
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
	working    map[Key]*lane
	requesters map[uint64]*requester
	turns      []*requester // those that have a key for a free worker
	closed     bool
}

var _ workqueue.TypedInterface[Key] = &Queue{}

// requester has queued keys or keys in progress. It is in turns if a lane has a turn and busy is below the share.
type requester struct {
	id     uint64
	lanes  map[uint64]*lane
	turns  []*lane // those with queued keys and none in progress
	busy   int
	queued bool // in Queue.turns
}

// lane has queued keys, or one in progress.
type lane struct {
	id   uint64
	of   *requester
	keys newestFirst
	busy bool
}

// New returns an empty Queue for a controller with that many workers. The controller's name is a label of the metrics.
func New(controller string, workers int) *Queue {
	q := &Queue{
		share: max(1, workers/2), clock: clock.RealClock{},
		depth: depth.WithLabelValues(controller), waited: waited.WithLabelValues(controller),
		added: map[Key]time.Time{}, working: map[Key]*lane{}, requesters: map[uint64]*requester{},
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
	if q.working[key] == nil {
		q.push(key)
	}
}

// push gives key to its lane. The caller holds mu.
func (q *Queue) push(key Key) {
	from := q.requesters[key.Requester]
	if from == nil {
		from = &requester{id: key.Requester, lanes: map[uint64]*lane{}}
		q.requesters[key.Requester] = from
	}
	in := from.lanes[key.Lane]
	if in == nil {
		in = &lane{id: key.Lane, of: from}
		from.lanes[key.Lane] = in
	}
	heap.Push(&in.keys, key)
	if len(in.keys.all) == 1 && !in.busy {
		from.turns = append(from.turns, in)
		q.wake(from)
	}
}

// wake gives from a turn if one of its keys may go to a worker. The caller holds mu.
func (q *Queue) wake(from *requester) {
	if !from.queued && len(from.turns) > 0 && from.busy < q.share {
		from.queued = true
		q.turns = append(q.turns, from)
		q.changed.Signal()
	}
}

// Get blocks until a key may be worked on. Call Done with it afterwards. shutdown is true when the queue is shut down,
// even if keys are queued: the next leader finds their requests in its cache.
func (q *Queue) Get() (key Key, shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.turns) == 0 && !q.closed {
		q.changed.Wait()
	}
	if q.closed {
		return Key{}, true
	}
	from := q.turns[0]
	q.turns, from.queued = q.turns[1:], false
	in := from.turns[0]
	from.turns = from.turns[1:]
	key = heap.Pop(&in.keys).(Key)
	q.waited.Observe(q.clock.Since(q.added[key]).Seconds())
	q.depth.Dec()
	delete(q.added, key)
	q.working[key] = in
	in.busy = true
	from.busy++
	q.wake(from)
	return key, false
}

// Done ends the work on key, and frees its lane and its worker.
func (q *Queue) Done(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	in := q.working[key]
	if in == nil {
		return
	}
	delete(q.working, key)
	in.busy = false
	in.of.busy--
	if len(in.keys.all) > 0 {
		in.of.turns = append(in.of.turns, in)
	} else {
		delete(in.of.lanes, in.id)
	}
	if len(in.of.lanes) == 0 {
		delete(q.requesters, in.of.id)
	}
	q.wake(in.of)
	if _, again := q.added[key]; again {
		q.push(key)
	}
	if q.closed {
		q.changed.Broadcast()
	}
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

// newestFirst is a heap of keys. Of two keys that were created in the same second, the one that was added later is newer.
type newestFirst struct {
	all  []ranked
	next uint64
}

type ranked struct {
	Key
	number uint64
}

func (n *newestFirst) Len() int { return len(n.all) }

func (n *newestFirst) Less(i, j int) bool {
	a, b := n.all[i], n.all[j]
	return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.number, b.number)) > 0
}

func (n *newestFirst) Swap(i, j int) { n.all[i], n.all[j] = n.all[j], n.all[i] }

func (n *newestFirst) Push(key any) {
	n.next++
	n.all = append(n.all, ranked{key.(Key), n.next})
}

func (n *newestFirst) Pop() any {
	last := len(n.all) - 1
	key := n.all[last].Key
	n.all = n.all[:last]
	return key
}
