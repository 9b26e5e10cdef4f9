package approver

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/lru"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
)

const (
	// refusedInARow is how many judgements of one requester's requests are made at full speed although each finds that
	// the requester lacks the permission.
	refusedInARow = 1000
	// pacedPerSecond is how many requests of such a requester are judged in a second.
	pacedPerSecond = 20
	// pacedAfter is the age from which a request is paced. A younger one is judged at once: to make it costs the requester
	// and the API server more than to judge it.
	pacedAfter = 10 * time.Second
	// pacedPause is the shortest pause of a paced request, and half of the longest.
	pacedPause = time.Minute
	// pacedRequesters bounds the requesters that are counted, and pacedRequests the requests that are being judged.
	pacedRequesters, pacedRequests = 1000, 10_000
)

// paces bounds how often the requests of a requester are judged that lacks the permission. Otherwise a requester with
// 100,000 pending requests would keep the manager and the API server busy. Only NotAuthorized counts: it is true of all
// requests of that requester for one signer, so no other one of them waits for what this one would get. The first
// approval ends the pace. The zero value is ready. paces is safe for concurrent use.
type paces struct {
	mu         sync.Mutex
	requesters *lru.Cache // requester → *pace
	judged     *lru.Cache // names of requests that are being judged, until refused, approved or forget
}

// requester is a user who makes requests for a signer.
type requester struct {
	signer string
	user   pending.Digest
}

func requesterOf(obj *certificatesv1.CertificateSigningRequest) requester {
	return requester{obj.Spec.SignerName, pending.DigestOf(obj.Spec.Username)}
}

// pace is that of one requester.
type pace struct {
	refused int // since the last approval
	limiter *rate.Limiter
}

// wait returns how long a request of some age waits until it may be judged; the result is jittered. Zero means now, and
// any number of times until the judgement is complete.
func (p *paces) wait(obj *certificatesv1.CertificateSigningRequest, age time.Duration, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prepare()
	of := p.of(requesterOf(obj))
	if of == nil || of.refused < refusedInARow {
		return 0
	}
	if _, begun := p.judged.Get(obj.Name); !begun && age >= pacedAfter && !of.limiter.AllowN(now, 1) {
		return wait.Jitter(pacedPause, 1)
	}
	p.judged.Add(obj.Name, nil)
	return 0
}

// refused counts a judgement that found that the requester lacks the permission.
func (p *paces) refused(obj *certificatesv1.CertificateSigningRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prepare()
	p.judged.Remove(obj.Name)
	of := p.of(requesterOf(obj))
	if of == nil {
		of = &pace{limiter: rate.NewLimiter(pacedPerSecond, pacedPerSecond)}
		p.requesters.Add(requesterOf(obj), of)
	}
	of.refused++
}

// approved ends the pace of a requester.
func (p *paces) approved(obj *certificatesv1.CertificateSigningRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prepare()
	p.judged.Remove(obj.Name)
	p.requesters.Remove(requesterOf(obj))
}

// forget drops the request of that name: its judgement is complete, or it needs none.
func (p *paces) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prepare()
	p.judged.Remove(name)
}

// prepare makes the zero value ready. The caller holds mu.
func (p *paces) prepare() {
	if p.requesters == nil {
		p.requesters, p.judged = lru.New(pacedRequesters), lru.New(pacedRequests)
	}
}

// of returns the pace of a requester, or nil. The caller holds mu.
func (p *paces) of(who requester) *pace {
	if known, found := p.requesters.Get(who); found {
		return known.(*pace)
	}
	return nil
}
