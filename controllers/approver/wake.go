package approver

import (
	"sync"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

const (
	// gatherFor is how long changes are gathered. When a thousand nodes join, their requests are looked up once. A node
	// that changes what it reports all the time causes two searches a second.
	gatherFor = 500 * time.Millisecond
	// mostWoken is how many requests of a lane a change wakes, the newest first. A kubelet waits only for its last
	// request. The others are judged again after their pause.
	mostWoken = 3
	// mostMarks bounds the names and addresses that are gathered. A request for one beyond it waits for its own pause, of
	// at most five minutes. Nodes and Machines that change many addresses must not wake everybody.
	mostMarks = 10_000
)

// The marks of waiting requests. All that use the inventory have markInventory.
var markInventory = fairqueue.Digest("inventory")

func markNode(name string) uint64 { return fairqueue.Digest("node", name) }

func markSAN(value san.SAN) uint64 { return fairqueue.Digest("san", value.String()) }

// marksOf returns what may wake a request: its node, and the names and addresses that a node asks for itself. There are none
// if its Judge does not use the inventory. Other requesters may write any name. Their names wake nothing, because one
// change of a Service would wake any number of requests.
func marksOf(judge Judge, req *csr.Request) []uint64 {
	if services, leases := needs(judge); !services && !leases {
		return nil
	}
	marks := []uint64{markInventory, markNode(req.NodeName())}
	if req.Requester.Username == csr.NodeUserPrefix+req.NodeName() {
		for _, value := range san.Of(req.Cert.DNSNames, req.Cert.IPAddresses) {
			marks = append(marks, markSAN(value))
		}
	}
	return marks
}

// wakeUps gathers what has changed in the inventory, and wakes the requests that may wait for it.
type wakeUps struct {
	changed chan struct{} // signals that something has changed

	mu    sync.Mutex
	marks map[uint64]bool
}

func newWakeUps() *wakeUps {
	return &wakeUps{changed: make(chan struct{}, 1), marks: map[uint64]bool{}}
}

// inventory wakes the requests for a node, or all that use the inventory if node is empty. It also wakes the requests that
// ask for any of the names and addresses that the node had.
func (w *wakeUps) inventory(node string, had ...san.SAN) {
	w.mu.Lock()
	defer w.mu.Unlock()
	mark := markNode(node)
	if node == "" {
		mark = markInventory
	}
	w.marks[mark] = true
	for _, value := range had[:max(0, min(len(had), mostMarks-len(w.marks)))] {
		w.marks[markSAN(value)] = true
	}
	select {
	case w.changed <- struct{}{}:
	default: // already signalled
	}
}

// take gathers further changes, and returns the marks since the last call.
func (w *wakeUps) take() map[uint64]bool {
	<-time.After(gatherFor)
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.marks
	w.marks = map[uint64]bool{}
	return taken
}
