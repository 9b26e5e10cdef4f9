package loop

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestWritesKeepTheMetadata checks that approval and certificate erase nothing of a request, although the cache trims requests.
func TestWritesKeepTheMetadata(t *testing.T) {
	kit.Parallel(t)
	together := func() (stop func()) { return kit.StartLoopAs(t, kit.ManagerConfig(t), csrenv.Options{}) }
	apart := func() (stop func()) { return kit.StartLoop(t, csrenv.Options{}) }
	for name, test := range map[string]struct {
		size  int
		start func() (stop func())
	}{
		"kept-together": {10, together}, "kept-large-together": {20 << 10, together},
		"kept": {10, apart}, "kept-large": {20 << 10, apart},
	} {
		obj := kit.CreateMarked(t, name, test.size)
		before := obj.DeepCopy()
		stop := test.start()
		issued := kit.Reaches(t, obj, csr.Issued)
		issued.ManagedFields, issued.ResourceVersion = before.ManagedFields, before.ResourceVersion
		if diff := cmp.Diff(before.ObjectMeta, issued.ObjectMeta); diff != "" {
			t.Errorf("%s: metadata (-created +issued):\n%s", name, diff)
		}
		if diff := cmp.Diff(before.Spec, issued.Spec); diff != "" {
			t.Errorf("%s: spec (-created +issued):\n%s", name, diff)
		}
		stop()
	}
}
