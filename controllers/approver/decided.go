package approver

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"
)

// rememberedDecisions bounds the decisions that decidedVersions holds. It is more than the API server stores in the
// seconds for which the cache may be behind.
const rememberedDecisions = 10_000

// decidedVersions holds the version of each request that a stored decision is about. If the cache still has that
// version, it does not show the decision yet, and the request must not be judged again. The zero value is empty. It is
// safe for concurrent use.
type decidedVersions struct {
	mu       sync.Mutex
	versions *lru.Cache // UID → resourceVersion
}

// add records that a decision about this version of obj is stored.
func (d *decidedVersions) add(obj metav1.Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.versions == nil {
		d.versions = lru.New(rememberedDecisions)
	}
	d.versions.Add(obj.GetUID(), obj.GetResourceVersion())
}

// has reports whether a decision about this version of obj is stored.
func (d *decidedVersions) has(obj metav1.Object) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.versions == nil {
		return false
	}
	version, known := d.versions.Get(obj.GetUID())
	return known && version == obj.GetResourceVersion()
}
