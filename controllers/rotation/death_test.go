package rotation

import (
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// TestDeathAtEveryWrite: a rotation, forth, back and forth again, ends the same wherever the process dies once.
func TestDeathAtEveryWrite(t *testing.T) {
	writes := 0
	for dies := 0; dies <= writes; dies++ {
		c := newCluster(nil)
		c.quiet = true
		w := c.world("cluster", kubeletSigner)
		w.ring.TLS = w.pair(3650 * day)
		n := 0
		c.crash = func() bool { n++; return n == dies }
		ask := func(operation v1alpha1.Operation, want v1alpha1.Phase) {
			t.Helper()
			err := c.settle()
			if err == nil {
				err = w.obeys(operation, want)
			}
			if err != nil {
				t.Fatalf("death at write %d: %v: %s", dies, err, w)
			}
		}
		ask(v1alpha1.AdoptionAttested, v1alpha1.Completed)
		ask(v1alpha1.RotateStart, v1alpha1.Prepared)
		w.signers[0].sign(w, kubeletSigner, 24*time.Hour)
		ask(v1alpha1.RotateRollback, v1alpha1.Prepared)
		c.pass(72 * time.Hour)
		ask(v1alpha1.RotateComplete, v1alpha1.Completed)
		ask(v1alpha1.RotateStart, v1alpha1.Prepared)
		ask(v1alpha1.RotateComplete, v1alpha1.Completed)
		if w.status.Generation != 3 || len(w.refused) != 0 || len(w.published) != 1 || !w.ring.TLS.Equal(w.ring.Signing) {
			t.Errorf("death at write %d: %s", dies, w)
		}
		if dies == 0 {
			writes = n
		}
	}
	if writes < 60 {
		t.Errorf("there were %d writes only", writes)
	}
}
