package approver

import (
	"golang.org/x/time/rate"
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
	limit   Limit
	clock   clock.PassiveClock
	counted *lru.Cache // digest of signer, requester and node → *rate.Limiter
}

func newLimiter(limit Limit, clock clock.PassiveClock) *limiter {
	if limit == (Limit{}) {
		return nil
	}
	return &limiter{limit: limit, clock: clock, counted: lru.New(countedNodes)}
}

// exceeded returns the Decision to wait if req's requester has no approval left, otherwise a Decision without a reason.
// The queue works on one request of a requester for a node at a time, so another one does not use up the same approval.
func (l *limiter) exceeded(req *csr.Request) Decision {
	if l == nil || l.approvals(req).TokensAt(l.clock.Now()) >= 1 {
		return Decision{}
	}
	return Decision{Result: verdict.Wait.Because("RateLimited",
		"user %q has used the %d approvals of approval.limit for signer %s and node %q, and gets %d more an hour: "+
			"the newest request is approved with the next of them; find out why the node makes so many requests",
		csr.Shorten(req.Requester.Username), l.limit.Burst, req.SignerName, csr.Shorten(req.NodeName()), l.limit.PerHour)}
}

// count counts an approval that is stored.
func (l *limiter) count(req *csr.Request) {
	if l != nil {
		l.approvals(req).ReserveN(l.clock.Now(), 1)
	}
}

// approvals returns the approvals that req's requester has left.
func (l *limiter) approvals(req *csr.Request) *rate.Limiter {
	key := fairqueue.Digest(req.SignerName, req.Requester.Username, req.NodeName())
	if known, found := l.counted.Get(key); found {
		return known.(*rate.Limiter)
	}
	fresh := rate.NewLimiter(rate.Limit(l.limit.PerHour)/3600, l.limit.Burst)
	l.counted.Add(key, fresh)
	return fresh
}
