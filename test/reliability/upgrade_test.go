//go:build soak

package reliability

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestUpgradeUnderLoad replaces the manager of the release before by this one, and this one by the one before, in each
// phase of a rotation and while requests arrive. RELEASE_BEFORE is the source of that release with its built manager:
// make nightly PARTS=test-upgrade.
func TestUpgradeUnderLoad(t *testing.T) {
	now, err := cluster.Manager()
	kit.NoError(t, err)
	versions := []string{os.Getenv("RELEASE_BEFORE") + "/csr-controller-manager", now}
	s, end := startSoak(t, versions[0])
	rolls := 0
	roll := func(phase v1alpha1.Phase) {
		s.hold(phase)
		defer s.rolling.Unlock()
		rolls++
		s.binary = versions[rolls%2]
		t.Logf("%s: version %d takes over", phase, rolls%2)
		changes, before := s.leaderChanges(), s.leader
		s.leader = s.startReplica(true) // a Deployment stops the present one when the new one is ready
		s.waitReady(s.leader)
		before.killed = true
		if err := before.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		s.until(patience, "the other version leads", func(context.Context) bool { return s.leaderChanges() > changes })
		time.Sleep(6 * time.Second) // more than settleFor, after which it may wrongly go on
		if now := s.authority(t.Context()).Status.Phase; now != phase {
			t.Errorf("the rotation is %s after the roll, want %s", now, phase)
		}
	}
	s.hold(v1alpha1.Completed) // at first the authority adopts its CA
	s.rolling.Unlock()
	phases := []v1alpha1.Phase{v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed}
	for range 2 { // each phase in both directions
		for _, phase := range phases {
			roll(phase)
		}
		roll(v1alpha1.Completed) // again, so that the other version meets Preparing next
	}
	s.finish(end)
}

// hold waits until the rotation is in phase and no operation is left to do, and locks s.rolling, so that no operator acts. Without one
// no phase ends: trust in a CA begins and ends when an operator copies the trust bundle.
func (s *soak) hold(phase v1alpha1.Phase) {
	s.t.Helper()
	last := v1alpha1.Phase("")
	if !s.poll(10*time.Minute, func(ctx context.Context) bool {
		s.rolling.Lock()
		obj := s.authority(ctx)
		candidate := obj.Status.Candidate
		confirmed := phase == v1alpha1.Preparing && (candidate == nil || candidate.TrustConfirmedAt != nil)
		if last = obj.Status.Phase; last == phase && !confirmed && obj.Annotations[v1alpha1.OperationAnnotation] == "" {
			return true
		}
		s.rolling.Unlock()
		return false
	}) {
		s.t.Fatalf("the rotation does not reach %s: it is %s", phase, last)
	}
}
