// Package parsed shares parsed requests between the controllers of one process. It does no I/O.
package parsed

import (
	"bytes"
	"maps"
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// most bounds the requests in the cache.
const most = 2048

// MaxSize bounds the size of the object of each request in the cache, in bytes. A request of a kubelet has less than
// 2 KiB. A larger request is parsed each time, so its requester cannot fill the memory.
const MaxSize = 4 << 10

// Requests is a cache of parsed requests. It holds the most recently used ones. A nil *Requests holds none. The zero
// value is empty. Requests is safe for concurrent use.
type Requests struct {
	mu      sync.Mutex
	entries *lru.Cache // UID → entry
}

// entry is a parsed request. The spec of a request never changes, but Parse does not depend on that.
type entry struct {
	req    *csr.Request
	name   string
	spec   certificatesv1.CertificateSigningRequestSpec
	limits csr.Limits
}

// Parse returns limits.Parse of obj, from the cache if possible. Callers must not change the request. An error is not
// cached.
func (r *Requests) Parse(obj *certificatesv1.CertificateSigningRequest, limits csr.Limits) (*csr.Request, error) {
	if r == nil {
		return limits.Parse(obj)
	}
	cache := r.cache()
	if found, ok := cache.Get(obj.UID); ok {
		if known := found.(*entry); known.name == obj.Name && known.limits == limits && equal(&known.spec, &obj.Spec) {
			return known.req, nil
		}
	}
	req, err := limits.Parse(obj)
	if err == nil && obj.Size() <= MaxSize {
		cache.Add(obj.UID, &entry{req, obj.Name, obj.Spec, limits})
	}
	return req, err
}

// Drop drops the request with that UID.
func (r *Requests) Drop(request types.UID) {
	if r != nil {
		r.cache().Remove(request)
	}
}

// DropFinished drops obj if it needs no further decision and no certificate.
func (r *Requests) DropFinished(obj *certificatesv1.CertificateSigningRequest) {
	if state := csr.StateOf(obj); state != csr.Pending && state != csr.Approved {
		r.Drop(obj.UID)
	}
}

// Len returns the number of requests in the cache.
func (r *Requests) Len() int { return r.cache().Len() }

func (r *Requests) cache() *lru.Cache {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entries == nil {
		r.entries = lru.New(most)
	}
	return r.entries
}

// equal reports whether a and b are parsed to the same Request.
func equal(a, b *certificatesv1.CertificateSigningRequestSpec) bool {
	return bytes.Equal(a.Request, b.Request) && a.SignerName == b.SignerName && slices.Equal(a.Usages, b.Usages) &&
		ptr.Equal(a.ExpirationSeconds, b.ExpirationSeconds) && a.Username == b.Username && a.UID == b.UID &&
		slices.Equal(a.Groups, b.Groups) && maps.EqualFunc(a.Extra, b.Extra, slices.Equal[certificatesv1.ExtraValue])
}
