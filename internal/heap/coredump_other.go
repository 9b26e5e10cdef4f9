//go:build !linux

package heap

// KeepOffDisk does nothing: the manager runs on Linux.
func KeepOffDisk() error { return nil }
