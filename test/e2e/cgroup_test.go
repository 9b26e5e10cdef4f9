//go:build e2e

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies returns the folders in which our cgroup must exist: one for each controller in version 1, and one in
// version 2.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	var dirs []string
	for _, entry := range entries {
		if entry.IsDir() { // the others are links to folders
			dirs = append(dirs, filepath.Join(cgroupRoot, entry.Name()))
		}
	}
	return dirs, err
}

// makeCgroup creates the cgroup for a kubelet's pods.
func makeCgroup(name string) error {
	dirs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		for part := range strings.SplitSeq(name, "/") {
			if err := passControllers(dir); err != nil {
				return err
			}
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return nil
}

// passControllers enables all controllers of a version 2 cgroup for its children.
func passControllers(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil // version 1
	}
	for _, name := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes all cgroups of name. The kernel releases a cgroup a moment after its last process has ended.
func removeCgroups(name string) error {
	dirs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		for range 100 {
			if err = removeTree(filepath.Join(dir, name)); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeTree removes the cgroup root and those below. The files in a cgroup go with it.
func removeTree(root string) error {
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := run(exec.Command("find", root, "-depth", "-type", "d", "-delete"))
	return err
}
