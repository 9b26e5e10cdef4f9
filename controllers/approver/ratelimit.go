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

// countedKeys bounds for how many Keys approvals are counted. The count of one that was evicted starts anew.
const countedKeys = 20_000

// Limit bounds the approvals of one requester for one node and one signer: Burst at once, and PerHour after that. The
// zero value is no limit.
type Limit struct{ Burst, PerHour int }

// limiter counts approvals. It is safe for concurrent use.
type limiter struct {
	limit Limit
	clock clock.PassiveClock

	mu      sync.Mutex
	counted *lru.Cache // pending.Key → *allowance
}

// allowance counts the approvals of one pending.Key.
type allowance struct {
	flowcontrol.PassiveRateLimiter
	unused int // approvals that were taken and not written
}

func newLimiter(limit Limit, clock clock.PassiveClock) *limiter {
	return &limiter{limit: limit, clock: clock, counted: lru.New(countedKeys)}
}

// take takes one approval of the requester's, or returns the decision to wait.
func (l *limiter) take(req *csr.Request) (Decision, bool) {
	if l == nil || l.limit == (Limit{}) {
		return Decision{}, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	allowed := l.allowance(req)
	if allowed.unused > 0 {
		allowed.unused--
		return Decision{}, true
	}
	if allowed.TryAccept() {
		return Decision{}, true
	}
	limited := verdict.Wait.Because("RateLimited",
		"user %q has had %d or more certificates of signer %s for node %q approved in a short time, and gets %d an hour: "+
			"the newest request is approved when the next one is due; find out why so many are asked for",
		csr.Shorten(req.Requester.Username), l.limit.Burst, req.SignerName, csr.Shorten(req.NodeName()), l.limit.PerHour)
	return Decision{Result: limited}, false
}

// giveBack returns the approval that was taken for req, after its write failed.
func (l *limiter) giveBack(req *csr.Request) {
	if l == nil || l.limit == (Limit{}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.allowance(req).unused++
}

// allowance returns what the requester of req has. The caller holds mu.
func (l *limiter) allowance(req *csr.Request) *allowance {
	key := pending.KeyOf(req)
	if known, found := l.counted.Get(key); found {
		return known.(*allowance)
	}
	perSecond := float32(l.limit.PerHour) / 3600
	fresh := &allowance{
		PassiveRateLimiter: flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(perSecond, l.limit.Burst, l.clock),
	}
	l.counted.Add(key, fresh)
	return fresh
}
