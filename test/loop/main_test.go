// Package loop tests the controllers in the process of the test, on a real control plane.
package loop

import (
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

func TestMain(m *testing.M) { kit.Main(m, 4) }
