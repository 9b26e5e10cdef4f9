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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// placed bounds how many requests' traits are remembered; a forgotten one is read anew when it is next looked at.
const placed = 50_000

// traits are what queues and wake-ups go by. A request's spec never changes, so each is read once.
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
	mu     sync.Mutex
	seen   *lru.Cache // name → traits
	newest *lru.Cache // flow → creation of its newest request
}

// of returns the traits of obj.
func (p *places) of(obj *certificatesv1.CertificateSigningRequest) traits {
	if last, known := p.get(obj.Name); known && last.uid == obj.UID {
		return last
	}
	read := readTraits(obj)
	p.mu.Lock()
	defer p.mu.Unlock()
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
		p.seen, p.newest = lru.New(placed), lru.New(placed)
	}
	last, known := p.seen.Get(name)
	if !known {
		return traits{}, false
	}
	return last.(traits), true
}

// superseded says whether a newer request than obj has been seen, of the same requester for the same node and signer. It
// counts when it has been decided, or deleted, since: who made it waits for obj no more.
func (p *places) superseded(obj *certificatesv1.CertificateSigningRequest) bool {
	about := p.of(obj)
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.newest.Get(about.flow)
	return known && last.(time.Time).After(about.created)
}

// named is the place of a request that has been looked at: a queue asks while it is locked, when nothing may be read. It
// is nobody's for one that is forgotten.
func (p *places) named(key reconcile.Request) place {
	about, _ := p.get(key.Name)
	return place{about.requester, about.node, about.created}
}

func readTraits(obj *certificatesv1.CertificateSigningRequest) traits {
	read := traits{flow: flow{signer: obj.Spec.SignerName, requester: obj.Spec.Username}, uid: obj.UID, created: obj.CreationTimestamp.Time}
	req, err := csr.Parse(obj)
	if err != nil {
		return read
	}
	read.node = strings.Clone(req.NodeName())
	read.renewal = obj.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName &&
		strings.HasPrefix(obj.Spec.Username, csr.NodeUserPrefix) && req.Cert.Subject.CommonName == obj.Spec.Username
	if len(req.Cert.DNSNames)+len(req.Cert.IPAddresses) <= maxNames {
		for _, san := range inventory.SANs(req.Cert) {
			read.sans = append(read.sans, digest(san))
		}
	}
	return read
}

var digestSeed = maphash.MakeSeed()

// digest is short, as a requester may ask for long names; two names of one digest are woken together.
func digest(san inventory.SAN) uint64 { return maphash.Comparable(digestSeed, san) }
