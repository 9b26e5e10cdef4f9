//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// inPod runs a subcommand in a Pod of the Deployment, as in README.
func (c *cluster) inPod(t *testing.T, args ...string) string {
	t.Helper()
	return c.kubectl(t, append([]string{"-n", namespace, "exec", "deploy/csr-controller-manager", "--",
		"/csr-controller-manager", args[0], "--config=/etc/csr-controller-manager/config.yaml"}, args[1:]...)...)
}

// testCommands runs the manager's commands for itself and for the first request of a node that has joined. A check
// that finds a problem would fail.
func (c *cluster) testCommands(t *testing.T, m *machine) {
	t.Helper()
	checked := c.inPod(t, "check", "--all")
	for _, part := range []string{"own-rights", "kubelet-rights", "ca-trusted"} {
		if !strings.Contains(checked, part) {
			t.Errorf("check does not tell %s:\n%s", part, checked)
		}
	}
	requests, err := c.requestsOf(t.Context(), m.name)
	if err != nil || len(requests) == 0 {
		t.Fatalf("no request of %s: %v", m.name, err)
	}
	explained := c.inPod(t, "explain", requests[0].Name)
	for _, part := range []string{bootstrapUser, "CN=system:node:" + m.name + ",O=system:nodes", "AutoApproved", "Issued"} {
		if !strings.Contains(explained, part) {
			t.Errorf("explain does not tell %q:\n%s", part, explained)
		}
	}
}
