package approver

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/lru"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
)

const (
	// refusedInARow is how many requests of one requester are judged at full speed although none is approved.
	refusedInARow = 1000
	// pacedPerSecond is how many requests of such a requester are judged in a second.
	pacedPerSecond = 20
	// pacedAfter is the age from which a request is paced. A younger one is judged at once: to make it costs the requester
	// and the API server more than to judge it, and it may be that of a node with the same bootstrap token.
	pacedAfter = 10 * time.Second
	// pacedPause is the shortest pause of a paced request, and half of the longest.
	pacedPause = time.Minute
	// pacedRequesters bounds the requesters whose refused requests are counted.
	pacedRequesters = 1000
)

// paces bounds how often the requests of a requester are judged, if none of the last 1,000 was approved. Otherwise a
// requester with 100,000 pending requests would keep the manager and the API server busy. The first approval ends it.
// The zero value is ready. paces is safe for concurrent use.
type paces struct {
	mu         sync.Mutex
	requesters *lru.Cache       // pending.Digest → *pace
	judged     sets.Set[string] // names of the requests that are being judged, until refused, approved or forget
}

// pace is that of one requester.
type pace struct {
	refused int // since the last approval
	limiter *rate.Limiter
}

// wait returns how long the request of that name waits until it may be judged; the result is jittered. Zero means now,
// and any number of times until the judgement is complete.
func (p *paces) wait(name string, requester pending.Digest, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.of(requester)
	if of == nil || of.refused < refusedInARow || p.judged.Has(name) {
		return 0
	}
	if !of.limiter.AllowN(now, 1) {
		return wait.Jitter(pacedPause, 1)
	}
	if p.judged == nil {
		p.judged = sets.New[string]()
	}
	p.judged.Insert(name)
	return 0
}

// refused counts a judgement that was not an approval.
func (p *paces) refused(name string, requester pending.Digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judged.Delete(name)
	of := p.of(requester)
	if of == nil {
		of = &pace{limiter: rate.NewLimiter(pacedPerSecond, pacedPerSecond)}
		if p.requesters == nil {
			p.requesters = lru.New(pacedRequesters)
		}
		p.requesters.Add(requester, of)
	}
	of.refused++
}

// approved ends the pace of a requester.
func (p *paces) approved(name string, requester pending.Digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judged.Delete(name)
	if p.requesters != nil {
		p.requesters.Remove(requester)
	}
}

// forget drops the request of that name, which is no longer undecided.
func (p *paces) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judged.Delete(name)
}

// of returns the pace of requester, or nil. The caller holds mu.
func (p *paces) of(requester pending.Digest) *pace {
	if p.requesters == nil {
		return nil
	}
	if known, found := p.requesters.Get(requester); found {
		return known.(*pace)
	}
	return nil
}
