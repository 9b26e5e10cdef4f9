package requestcache

import (
	"testing"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestDeletedRequestsAreDropped checks that a deleted request takes no room. The informer strips its last version, too.
func TestDeletedRequestsAreDropped(t *testing.T) {
	t.Parallel()
	for name, deleted := range map[string]func(toolscache.ResourceEventHandler, *request){
		"seen": func(to toolscache.ResourceEventHandler, gone *request) { to.OnDelete(gone) },
		"not seen": func(to toolscache.ResourceEventHandler, gone *request) {
			to.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: gone})
		},
		"skipped": func(to toolscache.ResourceEventHandler, gone *request) {
			next := gone.DeepCopy()
			next.UID = "uid-next"
			to.OnUpdate(gone, next)
		},
	} {
		held := &Cache{}
		held.Want(csr.Limits{}, func(*request) bool { return true })
		obj := parsable(t, "a")
		if _, err := held.Parse(obj, csr.Limits{}); err != nil {
			t.Fatal(err)
		}
		gone := stored(t, held, obj)
		held.handler().OnUpdate(gone, gone)
		if len(held.byUID) != 1 || held.Parsed() != 1 {
			t.Fatalf("%s: %d objects, %d parsed", name, len(held.byUID), held.Parsed())
		}
		deleted(held.handler(), gone)
		if len(held.byUID) != 0 || held.recent.Len() != 0 || held.bytes != 0 || held.Parsed() != 0 {
			t.Errorf("%s: %d objects, %d bytes, %d parsed", name, len(held.byUID), held.bytes, held.Parsed())
		}
	}
}
