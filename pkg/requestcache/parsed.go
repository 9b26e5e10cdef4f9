package requestcache

import (
	"bytes"
	"maps"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// mostParsed bounds the parsed requests in a Cache.
	mostParsed = 2048
	// MaxParsedSize bounds the size of the object of each parsed request in a Cache, in bytes. A request of a kubelet has
	// less than 2 KiB. A larger request is parsed each time, so its requester cannot fill the memory.
	MaxParsedSize = 4 << 10
)

// parsedRequest is a request in parsed form. The spec of a request never changes, but Parse does not depend on that.
type parsedRequest struct {
	req    *csr.Request
	name   string
	spec   certificatesv1.CertificateSigningRequestSpec
	limits csr.Limits
}

// Parse returns limits.Parse of obj. c holds the most recently used results, but no error. The caller must not change
// the result.
func (c *Cache) Parse(obj *certificatesv1.CertificateSigningRequest, limits csr.Limits) (*csr.Request, error) {
	if c == nil {
		return limits.Parse(obj)
	}
	cache := c.parsedRequests()
	if found, ok := cache.Get(obj.UID); ok {
		if known := found.(*parsedRequest); known.name == obj.Name && known.limits == limits && equal(&known.spec, &obj.Spec) {
			return known.req, nil
		}
	}
	req, err := limits.Parse(obj)
	if err == nil && obj.Size() <= MaxParsedSize {
		cache.Add(obj.UID, &parsedRequest{req, obj.Name, obj.Spec, limits})
	}
	return req, err
}

// Parsed returns the number of parsed requests in c.
func (c *Cache) Parsed() int { return c.parsedRequests().Len() }

func (c *Cache) parsedRequests() *lru.Cache {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parsed == nil {
		c.parsed = lru.New(mostParsed)
	}
	return c.parsed
}

// equal reports whether a and b are parsed to the same Request.
func equal(a, b *certificatesv1.CertificateSigningRequestSpec) bool {
	return bytes.Equal(a.Request, b.Request) && a.SignerName == b.SignerName && slices.Equal(a.Usages, b.Usages) &&
		ptr.Equal(a.ExpirationSeconds, b.ExpirationSeconds) && a.Username == b.Username && a.UID == b.UID &&
		slices.Equal(a.Groups, b.Groups) && maps.EqualFunc(a.Extra, b.Extra, slices.Equal[certificatesv1.ExtraValue])
}
