package rotation

import (
	"context"
	"testing"

	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// TestALedgerThatComesLateIsNotRun once the manager has ended: nobody would wait for it.
func TestALedgerThatComesLateIsNotRun(t *testing.T) {
	t.Parallel()
	r := &Reconciler{Clock: clock.RealClock{}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.records.Start(ctx); err != nil {
		t.Fatal(err)
	}
	r.recorder(&v1alpha1.SigningAuthority{})
	if r.records.running != nil {
		t.Error("it runs")
	}
}
