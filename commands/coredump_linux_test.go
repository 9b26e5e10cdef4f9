package commands

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestForbidCoreDumps makes this process one of which the kernel writes no core dump.
func TestForbidCoreDumps(t *testing.T) { //nolint:paralleltest // it changes the process
	if err := forbidCoreDumps(); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit != (unix.Rlimit{}) {
		t.Errorf("the limit is %+v, error %v", limit, err)
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 0 {
		t.Errorf("dumpable is %d, error %v", dumpable, err)
	}
}
