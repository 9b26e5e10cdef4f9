//go:build !linux

package heap

// ForbidCoreDumps does nothing: the manager runs on Linux.
func ForbidCoreDumps() error { return nil }
