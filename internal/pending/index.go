// Package pending holds the requests that a controller still has to handle. It keeps their order of creation for each
// requester and node, and has a work queue in which no requester delays the others. It does no I/O.
package pending

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Digest replaces a text that a requester chose. It is short, whatever the length of the text.
type Digest uint64

var seed = maphash.MakeSeed()

// DigestOf returns the Digest of text in this process. The empty text has the zero Digest. A text has the same Digest
// in a stripped request (csr.Bounded).
func DigestOf(text string) Digest {
	if text == "" {
		return 0
	}
	return Digest(maphash.String(seed, csr.Bounded(text)))
}

// Key identifies requests that supersede each other: those of one requester for one node and one signer.
type Key struct {
	Signer          string
	Requester, Node Digest
}

// KeyOf returns the Key of req.
func KeyOf(req *csr.Request) Key {
	return Key{Signer: req.SignerName, Requester: DigestOf(req.Requester.Username), Node: DigestOf(req.NodeName())}
}

// Request is a request as Index and Queue store it. It holds no text that a requester chose.
type Request struct {
	Name string
	UID  types.UID
	Key
	Created time.Time
}

// Of returns the Request of obj, from which req was parsed. If req is nil, the Request has no Node.
func Of(obj *certificatesv1.CertificateSigningRequest, req *csr.Request) Request {
	key := Key{Signer: obj.Spec.SignerName, Requester: DigestOf(obj.Spec.Username)}
	if req != nil {
		key = KeyOf(req)
	}
	return Request{Name: obj.Name, UID: obj.UID, Key: key, Created: obj.CreationTimestamp.Time}
}

// Index holds requests by name, and the requests of each Key in the order of their creation. Its owner removes a
// request that no longer waits, so the Index never holds more requests than exist. The zero value is empty. Index is
// safe for concurrent use.
type Index struct {
	mu       sync.Mutex
	requests map[string]Request
	ordered  map[Key]*ordered
}

// Put adds r. It replaces a request of the same name.
func (i *Index) Put(r Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, found := i.requests[r.Name]; found {
		if known == r {
			return
		}
		i.remove(known)
	}
	if i.requests == nil {
		i.requests, i.ordered = map[string]Request{}, map[Key]*ordered{}
	}
	i.requests[r.Name] = r
	if i.ordered[r.Key] == nil {
		i.ordered[r.Key] = &ordered{}
	}
	i.ordered[r.Key].add(r.Name, r.Created)
}

// Remove removes the request of that name, if there is one.
func (i *Index) Remove(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, found := i.requests[name]; found {
		i.remove(known)
	}
}

// remove removes r, which must be present. The caller holds mu.
func (i *Index) remove(r Request) {
	delete(i.requests, r.Name)
	i.ordered[r.Key].remove(r.Name, r.Created)
	if i.ordered[r.Key].count == 0 {
		delete(i.ordered, r.Key)
	}
}

// Get returns the request of that name.
func (i *Index) Get(name string) (Request, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r, found := i.requests[name]
	return r, found
}

// Len returns the number of requests.
func (i *Index) Len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.requests)
}

// Next returns the oldest request of key that is newer than created. The API server stores the creation in whole
// seconds, so two requests of the same second are not newer than each other.
func (i *Index) Next(key Key, created time.Time) (Request, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ordered[key] == nil {
		return Request{}, false
	}
	name, found := i.ordered[key].after(created)
	return i.requests[name], found
}

// Newer returns how many requests of the same Key are newer than the request of that name. Of two requests of the
// same second, the one that was put later is newer.
func (i *Index) Newer(name string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	r, found := i.requests[name]
	if !found {
		return 0
	}
	all := i.ordered[r.Key]
	return all.count - 1 - all.index(name, r.Created)
}

// All returns all requests, in no order.
func (i *Index) All() []Request {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Collect(maps.Values(i.requests))
}

// Newest returns the newest requests of each Key, at most n of each.
func (i *Index) Newest(n int) []Request {
	i.mu.Lock()
	defer i.mu.Unlock()
	var newest []Request
	for _, all := range i.ordered {
		for _, name := range all.last(n) {
			newest = append(newest, i.requests[name])
		}
	}
	return newest
}
