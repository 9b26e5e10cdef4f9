package manager

import (
	"crypto/fips140"
	"debug/buildinfo"
	"os"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestFIPS checks that these tests and the manager that they start use the FIPS 140-3 module that GOFIPS140 selects, as
// the part test-fips of `make nightly` does, and else none.
func TestFIPS(t *testing.T) {
	t.Parallel()
	module := os.Getenv("GOFIPS140")
	want := module != "" && module != "off"
	if fips140.Enabled() != want {
		t.Errorf("GOFIPS140 is %q, FIPS mode is %t", module, fips140.Enabled())
	}
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	for _, setting := range info.Settings {
		if setting.Key == "GOFIPS140" {
			got = setting.Value
		}
	}
	// The go command records the version with the hash of the module, such as v1.0.0-c2097c7c.
	if has := got != "" && got != "off"; has != want || want && !strings.HasPrefix(got, module) {
		t.Errorf("the manager has the module %q, want %q", got, module)
	}
}
