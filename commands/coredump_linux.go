package commands

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// forbidCoreDumps keeps the kernel from writing the memory of this process to a core dump: it holds the keys of CAs.
// The limit of the size has no effect on a core dump that the kernel hands to a program (core(5)), so the process is marked
// as not dumpable, too.
func forbidCoreDumps() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	return nil
}
