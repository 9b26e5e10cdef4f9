package commands

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestForbidCoreDumps makes this process one of which the kernel writes no core dump.
func TestForbidCoreDumps(t *testing.T) {
	kit.NoError(t, forbidCoreDumps())
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit != (unix.Rlimit{}) {
		t.Errorf("the limit is %+v, error %v", limit, err)
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 0 {
		t.Errorf("dumpable is %d, error %v", dumpable, err)
	}
}
