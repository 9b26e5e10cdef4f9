//go:build upgrade

package manifests

import (
	"os"
	"path/filepath"
	"testing"
)

// TestUpgradeFromTheReleaseBefore rolls the Deployment of the previous release out to this one, with each feature
// switched on at the same time, and back. RELEASE_BEFORE is the source of that release with its built manager:
// make nightly PARTS=test-upgrade.
func TestUpgradeFromTheReleaseBefore(t *testing.T) {
	before := source{root: os.Getenv("RELEASE_BEFORE"), binary: filepath.Join(os.Getenv("RELEASE_BEFORE"), "csr-controller-manager")}
	if _, err := os.Stat(before.binary); err != nil {
		t.Fatalf("RELEASE_BEFORE names no manager of the release before: make nightly PARTS=test-upgrade does: %v", err)
	}
	for _, replicas := range []int32{1, 2} {
		u := startUpgrade(t, replicas)
		for _, feature := range features {
			u.roll(t, install{name: "the release before", source: before})
			u.roll(t, feature)
		}
	}
}
