// Package rotation tests the rotation of signing CAs, on a real control plane.
package rotation

import (
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

func TestMain(m *testing.M) { kit.Main(m, 3, "../../config/crd") }
