package approver

import (
	"sync"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// remembered bounds how many requesters' approvals are counted; a forgotten one starts anew.
const remembered = 20_000

// Limit bounds the approvals of one requester for one node and one signer: Burst at once, and PerHour after that. The
// zero value is no limit.
type Limit struct{ Burst, PerHour int }

// limiter counts approvals. It is safe for concurrent use.
type limiter struct {
	limit Limit
	clock clock.PassiveClock

	mu   sync.Mutex
	seen *lru.Cache // pending.Key → *allowance
}

// allowance counts the approvals of one pending.Key.
type allowance struct {
	flowcontrol.PassiveRateLimiter
	unused int // approvals that were taken and have come to nothing
}

func (a *allowance) take() bool {
	if a.unused > 0 {
		a.unused--
		return true
	}
	return a.TryAccept()
}

func newLimiter(limit Limit, clock clock.PassiveClock) *limiter {
	return &limiter{limit: limit, clock: clock, seen: lru.New(remembered)}
}

// check takes one approval of the requester's, or returns the decision to wait.
func (l *limiter) check(req *csr.Request) (Decision, bool) {
	if l == nil || l.limit == (Limit{}) {
		return Decision{}, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of(req).take() {
		return Decision{}, true
	}
	return Decision{Result: verdict.Wait.Because("RateLimited",
		"user %q has had %d or more certificates of signer %s for node %q approved in a short time, and gets %d an hour: "+
			"the newest request is approved when the next one is due; find out why so many are asked for",
		csr.Shorten(req.Requester.Username), l.limit.Burst, req.SignerName, csr.Shorten(req.NodeName()), l.limit.PerHour)}, false
}

// giveBack is that the approval that was taken for req last could not be written.
func (l *limiter) giveBack(req *csr.Request) {
	if l == nil || l.limit == (Limit{}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(req).unused++
}

// of is called with mu held.
func (l *limiter) of(req *csr.Request) *allowance {
	key := pending.KeyOf(req)
	if known, found := l.seen.Get(key); found {
		return known.(*allowance)
	}
	fresh := &allowance{PassiveRateLimiter: flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(l.limit.PerHour)/3600, l.limit.Burst, l.clock)}
	l.seen.Add(key, fresh)
	return fresh
}
