//go:build unix

package plugin

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// keepOwner gives file the owner and the group of found.
func keepOwner(file *os.File, found fs.FileInfo) error {
	owner := found.Sys().(*syscall.Stat_t) // as os.FileInfo documents it
	return file.Chown(int(owner.Uid), int(owner.Gid))
}

// refuseForeign returns an error if root would write to file in a folder that another user can replace by a link to any place.
func refuseForeign(file string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	file, err := filepath.EvalSymlinks(file)
	if err == nil {
		file, err = filepath.Abs(file)
	}
	for err == nil && file != filepath.Dir(file) {
		file = filepath.Dir(file)
		var found fs.FileInfo
		if found, err = os.Stat(file); err == nil && found.Sys().(*syscall.Stat_t).Uid != 0 {
			return fmt.Errorf("the folder %s is not root's: run renew as its owner", file)
		}
	}
	return err
}
