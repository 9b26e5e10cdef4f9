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

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
	pending.Request
	// renewal is that a node asks for its own client certificate, for which nobody is asked but the API server.
	renewal bool
	sans    []uint64 // digests of the names and addresses that it asks for
}

// places remembers the traits of requests. The zero value is ready; it is safe for concurrent use.
type places struct {
	limits csr.Limits // of what is read of a request

	mu     sync.Mutex
	seen   *lru.Cache // name → traits
	newest *lru.Cache // pending.Key → creation of its newest request
	// waiting are those of seen that may be woken, so that a wake-up costs nothing for what has long been decided, and no
	// more for a node with thousands of requests than for one with ten.
	waiting pending.Index
}

// of returns the traits of obj.
func (p *places) of(obj *certificatesv1.CertificateSigningRequest) traits {
	if last, known := p.get(obj.Name); known && last.UID == obj.UID {
		return last
	}
	read := p.read(obj)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.Remove(obj.Name)
	p.seen.Add(obj.Name, read)
	if last, known := p.newest.Get(read.Key); !known || last.(time.Time).Before(read.Created) {
		p.newest.Add(read.Key, read.Created)
	}
	return read
}

func (p *places) get(name string) (traits, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil {
		p.seen, p.newest = lru.NewWithEvictionFunc(placed, p.evicted), lru.New(flows)
	}
	last, known := p.seen.Get(name)
	if !known {
		return traits{}, false
	}
	return last.(traits), true
}

// wait has obj woken from now on.
func (p *places) wait(obj *certificatesv1.CertificateSigningRequest) {
	p.waiting.Put(p.of(obj).Request)
}

// rest keeps what is known of obj, which is woken no more.
func (p *places) rest(obj *certificatesv1.CertificateSigningRequest) {
	p.of(obj)
	p.waiting.Remove(obj.Name)
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
func (p *places) evicted(name lru.Key, _ any) { p.waiting.Remove(name.(string)) }

// woken are the newest that wait, so many of each requester for each node, of those about which waits says so.
func (p *places) woken(most int, waits func(traits) bool) []reconcile.Request {
	newest := p.waiting.Newest(most)
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []reconcile.Request
	for _, request := range newest {
		if about, known := p.seen.Get(request.Name); known && waits(about.(traits)) {
			found = append(found, keyOf(request.Name))
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
	if last, known := p.newest.Get(about.Key); known && last.(time.Time).After(about.Created) {
		return true
	}
	return p.waiting.Newer(obj.Name) >= mostWoken
}

// find returns what is cached of a request, if it was not evicted. It reads nothing: the queue holds its lock.
func (p *places) find(name string) (pending.Request, bool) {
	about, known := p.get(name)
	return about.Request, known
}

func (p *places) read(obj *certificatesv1.CertificateSigningRequest) traits {
	req, err := p.limits.Parse(obj)
	read := traits{Request: pending.Of(obj, req)}
	if err != nil {
		return read
	}
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
