package approver

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

type workQueue = workqueue.TypedRateLimitingInterface[fairqueue.Key]

const (
	// gatherFor is how long changes are gathered. When a thousand nodes join, their requests are looked up once.
	gatherFor = 100 * time.Millisecond
	// restShare bounds the time for which waiting requests are searched, as a part of all time. A node may change what
	// it reports as often as it likes.
	restShare = 20
	// mostWoken is how many requests of a lane a change wakes, the newest first. A kubelet waits only for its last
	// request. The others are judged again after their pause.
	mostWoken = 3
	// mostMarks bounds the names and addresses that are gathered. A request for one beyond it waits for its own pause, of
	// at most five minutes: a user who changes a Service of many addresses must not wake everybody.
	mostMarks = 10_000
)

// The marks of waiting requests. All that use the inventory have markInventory.
var markInventory = fairqueue.Digest("inventory")

func markNode(name string) uint64 { return fairqueue.Digest("node", name) }

func markSAN(value san.SAN) uint64 { return fairqueue.Digest("san", value.String()) }

// marksOf returns what may wake req: its node, and the names and addresses that it asks for. There are none if the rule
// does not use the inventory.
func (r Rule) marksOf(req *csr.Request) []uint64 {
	if !r.looksUp() {
		return nil
	}
	marks := []uint64{markInventory, markNode(req.NodeName())}
	for _, value := range san.Of(req.Cert.DNSNames, req.Cert.IPAddresses) {
		marks = append(marks, markSAN(value))
	}
	return marks
}

// wakeUps gathers what has changed in the inventory, and wakes the requests that may wait for it.
type wakeUps struct {
	changed chan struct{}

	mu    sync.Mutex
	marks map[uint64]bool
}

func newWakeUps() *wakeUps {
	return &wakeUps{changed: make(chan struct{}, 1), marks: map[uint64]bool{}}
}

// node wakes the requests for a node, or all that use the inventory if name is empty.
func (w *wakeUps) node(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == "" {
		w.marks[markInventory] = true
	} else {
		w.marks[markNode(name)] = true
	}
	w.signal()
}

// free wakes the requests that ask for any of values, because another node no longer has them.
func (w *wakeUps) free(values []san.SAN) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, value := range values[:max(0, min(len(values), mostMarks-len(w.marks)))] {
		w.marks[markSAN(value)] = true
	}
	w.signal()
}

func (w *wakeUps) signal() {
	select {
	case w.changed <- struct{}{}:
	default: // already signalled
	}
}

// take returns the marks since the last call.
func (w *wakeUps) take() map[uint64]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.marks
	w.marks = map[uint64]bool{}
	return taken
}

// source returns a source that enqueues the waiting requests that a change concerns.
func (w *wakeUps) source(waiting *fairqueue.Index) source.TypedSource[fairqueue.Key] {
	return source.TypedFunc[fairqueue.Key](func(ctx context.Context, queue workQueue) error {
		go func() {
			timer, pause := clock.RealClock{}, gatherFor
			for {
				select {
				case <-ctx.Done():
					return
				case <-w.changed:
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause):
				}
				start := timer.Now()
				for _, key := range waiting.Marked(mostWoken, w.take()) {
					queue.Add(key)
				}
				pause = max(gatherFor, restShare*timer.Since(start))
			}
		}()
		return nil
	})
}
