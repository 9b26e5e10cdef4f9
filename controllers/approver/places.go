package approver

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

const (
	// placed bounds how many requests' traits are kept. They are dropped with their request, so it bounds no more than what
	// is left behind when a request is deleted while a worker looks at it.
	placed = 1 << 20
	// flows bounds of how many flows the newest request is remembered, which outlives the request.
	flows = 50_000
)

// traits are what queues and wake-ups go by. A request's spec never changes, so each is read once. They hold no text that a
// requester chooses.
type traits struct {
	flow
	uid     types.UID
	created time.Time
	// renewal is that a node asks for its own client certificate, for which nobody is asked but the API server.
	renewal bool
	sans    []uint64 // digests of the names and addresses that it asks for
}

// places remembers the traits of requests. The zero value is ready; it is safe for concurrent use.
type places struct {
	limits csr.Limits // of what is read of a request

	mu     sync.Mutex
	seen   *lru.Cache // name → traits
	newest *lru.Cache // flow → creation of its newest request
	// waiting are those of seen that may be woken, so that a wake-up costs nothing for what has long been decided, and no
	// more for a node with thousands of requests than for one with ten.
	waiting map[flow]*fairqueue.Newest
}

// of returns the traits of obj.
func (p *places) of(obj *certificatesv1.CertificateSigningRequest) traits {
	if last, known := p.get(obj.Name); known && last.uid == obj.UID {
		return last
	}
	read := p.read(obj)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.Remove(obj.Name)
	p.seen.Add(obj.Name, read)
	if last, known := p.newest.Get(read.flow); !known || last.(time.Time).Before(read.created) {
		p.newest.Add(read.flow, read.created)
	}
	return read
}

func (p *places) get(name string) (traits, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil {
		p.seen, p.newest, p.waiting = lru.NewWithEvictionFunc(placed, p.evicted), lru.New(flows), map[flow]*fairqueue.Newest{}
	}
	last, known := p.seen.Get(name)
	if !known {
		return traits{}, false
	}
	return last.(traits), true
}

// wait has obj woken from now on.
func (p *places) wait(obj *certificatesv1.CertificateSigningRequest) {
	about := p.of(obj)
	p.mu.Lock()
	defer p.mu.Unlock()
	requests, known := p.waiting[about.flow]
	if !known {
		requests = &fairqueue.Newest{}
		p.waiting[about.flow] = requests
	}
	if key := keyOf(obj.Name); requests.Index(key, about.created) < 0 {
		requests.Add(key, about.created)
	}
}

// rest keeps what is known of obj, which is woken no more.
func (p *places) rest(obj *certificatesv1.CertificateSigningRequest) {
	about := p.of(obj)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.evicted(obj.Name, about)
}

// leave drops what is kept of the request of that name, so that it is woken no more.
func (p *places) leave(name string) {
	if _, known := p.get(name); known {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen.Remove(name)
	}
}

// evicted removes a request from those that wait. The caller holds mu.
func (p *places) evicted(name lru.Key, last any) {
	about := last.(traits)
	requests, known := p.waiting[about.flow]
	if !known {
		return
	}
	requests.Remove(keyOf(name.(string)), about.created)
	if requests.Len() == 0 {
		delete(p.waiting, about.flow)
	}
}

// woken are the newest that wait, so many of each requester for each node, of those about which waits says so.
func (p *places) woken(most int, waits func(traits) bool) []reconcile.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []reconcile.Request
	for _, requests := range p.waiting {
		for _, key := range requests.Last(most) {
			if about, known := p.seen.Get(key.Name); known && waits(about.(traits)) {
				found = append(found, key)
			}
		}
	}
	return found
}

func keyOf(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// superseded says whether a newer request than obj has been seen, of the same requester for the same node and signer, or
// obj is not among the newest that wait, as of those of one second, which is all that the API server notes, all would be.
// A newer one counts when it has been decided, or deleted, since: who made it waits for obj no more.
func (p *places) superseded(obj *certificatesv1.CertificateSigningRequest) bool {
	about := p.of(obj)
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, known := p.newest.Get(about.flow); known && last.(time.Time).After(about.created) {
		return true
	}
	requests, known := p.waiting[about.flow]
	if !known {
		return false
	}
	at := requests.Index(keyOf(obj.Name), about.created)
	return at >= 0 && at < requests.Len()-mostWoken
}

// queueKey returns the cached place of a request, or the zero place if it was evicted. It reads nothing: the queue holds
// its lock.
func (p *places) queueKey(key reconcile.Request) fairqueue.Place {
	about, _ := p.get(key.Name)
	return fairqueue.Place{Requester: about.requester, Node: about.node, Created: about.created}
}

func (p *places) read(obj *certificatesv1.CertificateSigningRequest) traits {
	read := traits{flow: flow{signer: obj.Spec.SignerName, requester: fairqueue.DigestOf(obj.Spec.Username)}, uid: obj.UID, created: obj.CreationTimestamp.Time}
	req, err := p.limits.Parse(obj)
	if err != nil {
		return read
	}
	read.node = fairqueue.DigestOf(req.NodeName())
	read.renewal = obj.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName &&
		strings.HasPrefix(obj.Spec.Username, csr.NodeUserPrefix) && req.Cert.Subject.CommonName == obj.Spec.Username
	for _, san := range inventory.SANs(req.Cert) {
		read.sans = append(read.sans, digest(san))
	}
	return read
}

var digestSeed = maphash.MakeSeed()

// digest is short, as a requester may ask for long names; two names of one digest are woken together.
func digest(san inventory.SAN) uint64 { return maphash.Comparable(digestSeed, san) }
