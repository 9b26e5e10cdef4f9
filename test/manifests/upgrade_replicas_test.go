//go:build nightly

package manifests

import "testing"

func TestUpgradeOfTwoReplicas(t *testing.T) {
	t.Parallel()
	u := startUpgrade(t, 2)
	u.roll(t, install{name: "as shipped"})
	u.throughEachFeature(t)
}
