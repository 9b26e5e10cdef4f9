package approver

import (
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
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
	buckets *lru.Cache // digest of signer, requester and node → *rate.Limiter
}

func newLimiter(limit Limit, clock clock.PassiveClock) *limiter {
	if limit == (Limit{}) {
		return nil
	}
	return &limiter{limit: limit, clock: clock, buckets: lru.New(countedNodes)}
}

// reserve takes an approval for req before it is written, because requests without a node are judged at the same time. If
// req's requester has none left, it returns the Decision to wait, otherwise a Decision without a reason.
func (l *limiter) reserve(req *csr.Request) judge.Decision {
	if l == nil || l.take(req, 1) {
		return judge.Decision{}
	}
	return judge.Wait.Because("RateLimited",
		"user %q has used the %d approvals of approval.limit for signer %s and node %q, and gets %d more an hour: "+
			"the newest request is approved with the next of them; find out why the node makes so many requests",
		csr.Shorten(req.Requester.Username), l.limit.Burst, req.SignerName, csr.Shorten(req.NodeName()), l.limit.PerHour)
}

// giveBack returns an approval that certainly was not stored.
func (l *limiter) giveBack(req *csr.Request) {
	if l != nil {
		l.take(req, -1)
	}
}

// take takes n approvals of req's requester, if it has so many left.
func (l *limiter) take(req *csr.Request, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fairqueue.Digest(req.SignerName, req.Requester.Username, req.NodeName())
	known, found := l.buckets.Get(key)
	if !found {
		known = rate.NewLimiter(rate.Limit(l.limit.PerHour)/3600, l.limit.Burst) // in a second
		l.buckets.Add(key, known)
	}
	return known.(*rate.Limiter).AllowN(l.clock.Now(), n)
}
