// Package monitoring tests the monitoring of the manager: alert rules, their runbooks and the dashboard. It uses
// promtool and a real Prometheus that scrapes real managers.
package monitoring

import (
	"os"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// The live tests share a control plane.
func TestMain(m *testing.M) { kit.Main(m, 1) }

// tool returns the path of a program of hack/monitoring/get.sh.
func tool(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s is not set: run the tests with make test", variable)
	}
	return path
}
