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
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestUpgradeUnderLoad replaces the manager of the release before by this one, and this one by the one before, in each
// phase of a rotation and while requests arrive. RELEASE_BEFORE is the source of that release with its built manager:
// make nightly PARTS=test-upgrade.
func TestUpgradeUnderLoad(t *testing.T) {
	now, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	versions := []string{os.Getenv("RELEASE_BEFORE") + "/csr-controller-manager", now}
	s, end := startSoak(t, versions[0])
	rolls := 0
	roll := func(phase v1alpha1.Phase) {
		s.hold(phase)
		defer s.rolling.Unlock()
		rolls++
		s.binary = versions[rolls%2]
		t.Logf("%s: version %d takes over", phase, rolls%2)
		changes := s.leaderChanges()
		s.roll()
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

// roll starts a replica of s.binary, and stops the present one when the new one is ready, as a Deployment does.
func (s *soak) roll() {
	s.t.Helper()
	before := s.leader
	s.leader = s.startReplica(true)
	s.waitReady(s.leader)
	before.killed = true // its end is no fault
	if err := before.Stop(); err != nil {
		s.t.Errorf("stop: %v", err)
	}
}

// hold waits until the rotation is in phase and no operation is left to do, and locks s.rolling, so that no operator acts. Without one
// no phase ends: trust in a CA begins and ends when an operator copies the trust bundle.
func (s *soak) hold(phase v1alpha1.Phase) {
	s.t.Helper()
	last := v1alpha1.Phase("")
	err := wait.PollUntilContextTimeout(s.t.Context(), 50*time.Millisecond, 10*time.Minute, true, func(ctx context.Context) (bool, error) {
		s.rolling.Lock()
		obj := s.authority(ctx)
		candidate := obj.Status.Candidate
		confirmed := phase == v1alpha1.Preparing && (candidate == nil || candidate.TrustConfirmedAt != nil)
		if last = obj.Status.Phase; last == phase && !confirmed && obj.Annotations[v1alpha1.OperationAnnotation] == "" {
			return true, nil
		}
		s.rolling.Unlock()
		return false, nil
	})
	if err != nil {
		s.t.Fatalf("the rotation does not reach %s: it is %s", phase, last)
	}
}

// authority returns the SigningAuthority, or an empty one if it can't be read.
func (s *soak) authority(ctx context.Context) *v1alpha1.SigningAuthority {
	obj := &v1alpha1.SigningAuthority{}
	_ = kit.Admin(s.t).Get(ctx, client.ObjectKey{Name: "cluster"}, obj) // the next attempt may succeed
	return obj
}
