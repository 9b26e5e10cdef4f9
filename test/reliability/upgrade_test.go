//go:build soak

package reliability

import (
	"context"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// TestUpgradeUnderLoad replaces the manager of the release before by this one, and this one by the one before, in each
// phase of a rotation and while requests arrive. RELEASE_BEFORE is the source of that release with its built manager:
// make test-upgrade.
func TestUpgradeUnderLoad(t *testing.T) {
	now, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	versions := []string{os.Getenv("RELEASE_BEFORE") + "/csr-controller-manager", now}
	s, end := startSoak(t, versions[0])
	rolls := 0
	roll := func(why string) {
		rolls++
		s.binary = versions[rolls%2]
		t.Logf("%s: version %d takes over", why, rolls%2)
		s.rolling.Lock() // the rotation stays in its phase
		defer s.rolling.Unlock()
		s.roll()
	}
	for range 2 { // each phase in both directions
		for _, phase := range []v1alpha1.Phase{v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed} {
			s.awaits(phase)
			roll(string(phase))
		}
		roll("between two rotations")
	}
	end()
	s.check(true)
	t.Logf("%d requests, %d rotations, %d rolls", s.number, s.rotations, rolls)
	for _, err := range append(s.failed, s.verifyProcesses()...) {
		t.Error(err)
	}
}

// roll starts a replica of s.binary, and stops the present one when the new one is ready, as a Deployment does.
func (s *soak) roll() {
	s.t.Helper()
	before := s.steady
	s.steady = s.startReplica(true)
	s.waitReady(s.steady)
	before.killed = true // its end is no fault
	if err := before.Stop(); err != nil {
		s.t.Errorf("stop: %v", err)
	}
}

// awaits waits until the rotation is in phase. A phase that passes quickly may be over when awaits returns.
func (s *soak) awaits(phase v1alpha1.Phase) {
	s.t.Helper()
	last := v1alpha1.Phase("")
	err := wait.PollUntilContextTimeout(s.t.Context(), 50*time.Millisecond, 10*time.Minute, true, func(ctx context.Context) (bool, error) {
		obj := &v1alpha1.SigningAuthority{}
		if err := s.objects.Get(ctx, client.ObjectKey{Name: "cluster"}, obj); err != nil {
			return false, nil //nolint:nilerr // ask again
		}
		passed := last == v1alpha1.Prepared && phase == v1alpha1.Completing && obj.Status.Phase == v1alpha1.Completed
		last = obj.Status.Phase
		return last == phase || passed, nil
	})
	if err != nil {
		s.t.Fatalf("the rotation does not reach %s: it is %s", phase, last)
	}
}
