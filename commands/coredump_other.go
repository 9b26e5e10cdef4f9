//go:build !linux

package commands

// forbidCoreDumps does nothing: the manager runs on Linux.
func forbidCoreDumps() error { return nil }
