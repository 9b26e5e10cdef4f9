// Package requestcache keeps a manager's copies of CertificateSigningRequests small. The informer holds stripped
// requests only (csr.Strip). A Cache beside it holds the whole objects that controllers will read soon, within a byte
// budget, and parsed requests. So neither old requests nor a requester with many or large ones decide how much memory a
// manager needs. Who uses a Cache without controllers.Options adds Deletions to the manager.
package requestcache

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// budget bounds the whole objects, in bytes of their encoding plus overhead each. A backlog of 10,000 requests of
	// kubelets fits.
	budget, overhead = 48 << 20, 1 << 10
	// largest bounds one object. A larger object is read from the API server each time.
	largest = 16 << 10
)

// ErrChanged reports that a request has changed since the informer has received it.
var ErrChanged = errors.New("the request has changed: it is judged again when the watch has brought the change")

// Lag is when to try again after ErrChanged. The watch brings most changes earlier, but not every change is enqueued.
const Lag = 100 * time.Millisecond

// Cache holds whole requests. The zero value is ready; a nil Cache holds nothing. It is safe for concurrent use.
type Cache struct {
	// Limits bounds what is read of a request.
	Limits csr.Limits

	mu              sync.Mutex
	wants           []func(*certificatesv1.CertificateSigningRequest) bool
	maxRequestBytes int    // of all callers of Want
	oversized       []byte // one byte more, in place of a larger spec.request
	byUID           map[types.UID]*list.Element
	recent          list.List // of heldRequest, the last used first
	bytes           int
	parsed          *lru.Cache // UID → *parsedRequest
}

type heldRequest struct {
	*certificatesv1.CertificateSigningRequest
	size int
	// read reports that the object was read from the API server while a controller handled it. It is held until the
	// controller is done with it (Pause).
	read bool
}

// Want makes c hold the requests for which wants returns true. It has an effect only on requests that arrive later.
//
// limits are the caller's limits for Parse. If spec.request is too large for all callers, c holds zeros of a refused length
// in its place, and the rest of the object. So it is refused without a read. The API server ignores spec.request in an
// update.
func (c *Cache) Want(limits csr.Limits, wants func(*certificatesv1.CertificateSigningRequest) bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wants = append(c.wants, wants)
	c.maxRequestBytes = max(c.maxRequestBytes, cmp.Or(limits.RequestBytes, csr.DefaultLimits.RequestBytes))
	c.oversized = nil
}

// CacheOptions returns the settings of a manager's cache that strips requests, and strips managed fields from other
// objects. With a nil Cache requests stay whole. There are no settings for a kind, because a manager could not start
// with them while discovery fails.
func (c *Cache) CacheOptions() cache.Options {
	other := cache.TransformStripManagedFields()
	return cache.Options{DefaultTransform: func(in any) (any, error) {
		if obj, ok := in.(*certificatesv1.CertificateSigningRequest); ok && c != nil {
			return c.strip(obj), nil
		}
		return other(in)
	}}
}

// strip returns the stripped form of obj, and holds obj if a controller wants it.
func (c *Cache) strip(obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	if csr.Stripped(obj) { // a transformer may be called with its own result
		return obj
	}
	obj.ManagedFields = nil
	c.hold(obj)
	if state := csr.StateOf(obj); state != csr.Pending && state != csr.Approved {
		c.parsedRequests().Remove(obj.UID)
	}
	return csr.Strip(obj, func(obj *certificatesv1.CertificateSigningRequest) (*csr.Request, error) {
		return c.Parse(obj, c.Limits)
	})
}

// hold drops the earlier version of obj. It keeps obj instead if a controller wants it and it is small enough.
func (c *Cache) hold(obj *certificatesv1.CertificateSigningRequest) {
	held := heldRequest{obj, obj.Size() + overhead, false}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(c.byUID[obj.UID])
	wanted := c.wanted(obj)
	if wanted && len(obj.Spec.Request) > c.maxRequestBytes {
		if c.oversized == nil { // not earlier, because the limit may be as large as an int
			c.oversized = make([]byte, c.maxRequestBytes+1)
		}
		small := *obj
		small.Spec.Request = c.oversized
		held = heldRequest{&small, held.size - len(obj.Spec.Request), false}
	}
	if wanted {
		c.add(held)
	}
}

// wanted reports whether a controller will read obj soon. The caller holds mu.
func (c *Cache) wanted(obj *certificatesv1.CertificateSigningRequest) bool {
	for _, wants := range c.wants {
		if wants(obj) {
			return true
		}
	}
	return false
}

// add holds an object that c does not hold, if it is small enough. The caller holds mu.
func (c *Cache) add(held heldRequest) {
	if held.size > largest {
		return
	}
	if c.byUID == nil {
		c.byUID = map[types.UID]*list.Element{}
	}
	c.byUID[held.UID] = c.recent.PushFront(held)
	for c.bytes += held.size; c.bytes > budget; {
		c.drop(c.recent.Back())
	}
}

// Drop drops what c holds of the request with that UID: no controller will read it again.
func (c *Cache) Drop(request types.UID) {
	if c == nil {
		return
	}
	c.parsedRequests().Remove(request)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(c.byUID[request])
}

// drop drops an element, if it is not nil. The caller holds mu.
func (c *Cache) drop(element *list.Element) {
	if element == nil {
		return
	}
	held := c.recent.Remove(element).(heldRequest)
	delete(c.byUID, held.UID)
	c.bytes -= held.size
}

// held returns the whole object of obj, which may be stripped, if c holds that version. changed reports that c holds
// another version, which the watch brings next.
func (c *Cache) held(obj *certificatesv1.CertificateSigningRequest) (
	whole *certificatesv1.CertificateSigningRequest, changed bool,
) {
	if !csr.Stripped(obj) {
		return obj, false
	}
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.byUID[obj.UID]
	if element == nil {
		return nil, false
	}
	held := element.Value.(heldRequest)
	if held.ResourceVersion != obj.ResourceVersion {
		if held.read { // the watch has brought another version meanwhile
			c.drop(element)
		}
		return nil, !held.read
	}
	c.recent.MoveToFront(element)
	return held.CertificateSigningRequest, false
}

// Held returns obj as a whole if c holds it or obj is not stripped, else obj itself. The caller must not change it.
func (c *Cache) Held(obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	if whole, _ := c.held(obj); whole != nil {
		return whole
	}
	return obj
}

// Whole returns the whole object of obj, which may be stripped, in the same version. If c does not hold it, Whole reads
// it from the API server, and c holds it until Pause if a controller wants it. If obj has changed since, it returns
// ErrChanged. The caller must not change the object.
func (c *Cache) Whole(
	ctx context.Context, live client.Reader, obj *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	whole, changed := c.held(obj)
	switch {
	case whole != nil:
		return whole, nil
	case changed:
		return nil, ErrChanged
	}
	whole = &certificatesv1.CertificateSigningRequest{}
	err := live.Get(ctx, client.ObjectKeyFromObject(obj), whole)
	switch {
	case apierrors.IsNotFound(err):
		return nil, ErrChanged
	case err != nil:
		return nil, fmt.Errorf("read request: %w", err)
	case whole.UID != obj.UID || whole.ResourceVersion != obj.ResourceVersion:
		return nil, ErrChanged
	}
	if c != nil {
		whole.ManagedFields = nil
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.byUID[whole.UID] == nil && len(whole.Status.Certificate) == 0 && c.wanted(whole) {
			c.add(heldRequest{whole, whole.Size() + overhead, true})
		}
	}
	return whole, nil
}

// Pause returns the time until obj, as it is in the informer, is judged again if nothing wakes it. That is pause, but
// ten minutes in place of a minute if each judgement reads obj from the API server: a flood of waiting requests must
// not cause a flood of reads. If pause is not zero, c drops an object that was read.
func (c *Cache) Pause(obj *certificatesv1.CertificateSigningRequest, pause time.Duration) time.Duration {
	if pause == 0 || !csr.Stripped(obj) {
		return pause
	}
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if element := c.byUID[obj.UID]; element != nil {
			if !element.Value.(heldRequest).read {
				return pause
			}
			c.drop(element)
		}
	}
	if pause < time.Minute {
		return pause
	}
	return 10 * time.Minute
}
