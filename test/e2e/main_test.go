//go:build e2e

// Package e2e runs the manager as users do: as a Deployment on real nodes, with real kubelets that join through it.
// It needs root and the programs that test/README.md lists. It pulls nothing from a registry.
//
// The test binary runs three times. The outer process is the one that go test starts. It starts a guard, which cleans
// up whatever happens to the others. Then it starts itself again in its own namespaces (processes, mounts, network),
// where the tests run. When the first process there ends, the kernel ends all others, with their mounts and
// addresses.
package e2e

import (
	"fmt"
	"os"
	"testing"
)

// roleVariable names which of the three a process is, and dirVariable the folder that they share.
const (
	roleVariable = "CSR_E2E_ROLE"
	dirVariable  = "CSR_E2E_DIR"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "inner":
		os.Exit(m.Run())
	case "guard":
		os.Exit(exitCode(guard(os.Stdin)))
	default:
		os.Exit(outer())
	}
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "e2e:", err)
	return 1
}
