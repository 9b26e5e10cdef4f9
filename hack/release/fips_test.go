package release

import (
	"crypto/fips140"
	"os"
	"testing"
)

// TestFIPS checks that a test runs in FIPS mode if GOFIPS140 selects a module, as `make test-fips` does, and else not.
func TestFIPS(t *testing.T) {
	t.Parallel()
	module := os.Getenv("GOFIPS140")
	if want := module != "" && module != "off"; fips140.Enabled() != want {
		t.Errorf("GOFIPS140 is %q, FIPS mode is %t", module, fips140.Enabled())
	}
}
