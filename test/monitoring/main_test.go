// Package monitoring tests the monitoring of the manager: alert rules, their runbooks and the dashboard. It uses
// promtool and a real Prometheus that scrapes real managers.
package monitoring

import (
	"os"
	"testing"
)

// tool returns the path of a program of hack/monitoring/get.sh.
func tool(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s is not set: run the tests with make test", variable)
	}
	return path
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
