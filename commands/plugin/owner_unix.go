//go:build unix

package plugin

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives file the owner and the group of found.
func keepOwner(file *os.File, found fs.FileInfo) error {
	owner := found.Sys().(*syscall.Stat_t) // as os.FileInfo documents it
	return file.Chown(int(owner.Uid), int(owner.Gid))
}
