//go:build e2e

package e2e

import (
	"testing"
)

const namespace = "csr-controller-manager-system"

func TestDeployment(t *testing.T) {
	c := startCluster(t)
	t.Log(c.kubectl(t, "get", "nodes", "-o", "wide"))
}
