//go:build nightly

package manifests

import "testing"

func TestRolloutsOfTwoReplicas(t *testing.T) {
	t.Parallel()
	testRollouts(t, 2)
}
