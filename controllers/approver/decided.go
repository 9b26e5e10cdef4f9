package approver

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"
)

const (
	// rememberedDecisions bounds the decisions in decidedVersions. It is more than the API server stores in the seconds
	// for which the cache may be behind.
	rememberedDecisions = 10_000
	// decidedFor is how long a decided version is not judged again. The cache is behind for seconds. After that time the
	// version is really undecided: an earlier state of etcd was restored.
	decidedFor = time.Minute
)

// decidedVersions maps the UID of each decided request to the resourceVersion that was judged. While the cache has that
// version, it does not show the stored decision yet, and the request must not be judged again. The zero value is empty.
// It is safe for concurrent use.
type decidedVersions struct {
	mu       sync.Mutex
	versions *lru.Cache // UID → decidedVersion
}

type decidedVersion struct {
	resourceVersion string
	at              time.Time
}

// add records that a decision about this version of obj was stored at now.
func (d *decidedVersions) add(obj metav1.Object, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.versions == nil {
		d.versions = lru.New(rememberedDecisions)
	}
	d.versions.Add(obj.GetUID(), decidedVersion{obj.GetResourceVersion(), now})
}

// wait returns the time until this version of obj may be judged. It is zero if no decision about it is stored.
func (d *decidedVersions) wait(obj metav1.Object, now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.versions == nil {
		return 0
	}
	last, known := d.versions.Get(obj.GetUID())
	if !known || last.(decidedVersion).resourceVersion != obj.GetResourceVersion() {
		return 0
	}
	return max(0, decidedFor-now.Sub(last.(decidedVersion).at))
}
