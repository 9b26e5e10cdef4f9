// Package manager tests the manager's program, and the kubectl plugin, on a real control plane.
package manager

import (
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

func TestMain(m *testing.M) { kit.Main(m, 6) }
