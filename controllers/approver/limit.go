package approver

import (
	"sync"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// countedNodes bounds the nodes whose approvals are counted. An evicted count starts again from zero.
const countedNodes = 20_000

// Limit bounds the approvals of one requester for one node and one signer: Burst at once, then PerHour. The zero value
// means no limit.
type Limit struct{ Burst, PerHour int }

// limiter counts approvals. It is safe for concurrent use. If it is nil, there is no limit.
type limiter struct {
	limit Limit
	clock clock.PassiveClock

	mu      sync.Mutex
	counted *lru.Cache // digest of signer, requester and node → *allowance
}

// allowance counts the approvals of one requester for one node and one signer.
type allowance struct {
	flowcontrol.PassiveRateLimiter
	unused int // approvals that were taken but not written
}

func newLimiter(limit Limit, clock clock.PassiveClock) *limiter {
	if limit == (Limit{}) {
		return nil
	}
	return &limiter{limit: limit, clock: clock, counted: lru.New(countedNodes)}
}

// take takes an approval of req's requester. If none is left, it returns the Decision to wait, otherwise a Decision
// without a reason.
func (l *limiter) take(req *csr.Request) Decision {
	if l == nil {
		return Decision{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	allowed := l.allowance(req)
	switch {
	case allowed.unused > 0:
		allowed.unused--
		return Decision{}
	case allowed.TryAccept():
		return Decision{}
	}
	return Decision{Result: verdict.Wait.Because("RateLimited",
		"user %q has used the %d approvals of approval.limit for signer %s and node %q, and gets %d more an hour: "+
			"the newest request is approved with the next of them; find out why the node makes so many requests",
		csr.Shorten(req.Requester.Username), l.limit.Burst, req.SignerName, csr.Shorten(req.NodeName()), l.limit.PerHour)}
}

// giveBack returns req's approval after a failed write.
func (l *limiter) giveBack(req *csr.Request) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.allowance(req).unused++
}

// allowance returns the allowance of req's requester. The caller holds mu.
func (l *limiter) allowance(req *csr.Request) *allowance {
	key := fairqueue.Digest(req.SignerName, req.Requester.Username, req.NodeName())
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
