//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// places are patterns of the paths where a node keeps its files. Our machines keep them in folders that only they
// see.
var places = []string{
	"/etc/kubernetes", "/etc/cni", "/etc/containerd", "/var/lib/kubelet", "/var/lib/cni", "/var/lib/containerd",
	"/var/lib/etcd", "/var/log/pods", "/var/log/containers", "/opt/cni", "/opt/containerd", "/run/containerd",
	"/run/netns/*", "/sys/class/net/*",
}

// surroundings are the existing paths among places.
type surroundings map[string]bool

func lookAround() surroundings {
	found := surroundings{}
	for _, pattern := range places {
		matches, _ := filepath.Glob(pattern)
		for _, match := range matches {
			found[match] = true
		}
	}
	return found
}

// check returns an error for everything that a run with the folder dir left on this machine.
func (s surroundings) check(dir string) error {
	var errs []error
	for place := range lookAround() {
		if !s[place] {
			errs = append(errs, fmt.Errorf("left behind: %s", place))
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("left behind: %s", dir))
	}
	name := filepath.Base(dir)
	mounts, err := os.ReadFile("/proc/self/mounts")
	errs = append(errs, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, name) {
			errs = append(errs, fmt.Errorf("left behind: mount %s", line))
		}
	}
	cgroups, err := filepath.Glob(filepath.Join(cgroupRoot, "*", name))
	errs = append(errs, err)
	for _, path := range append(cgroups, filepath.Join(cgroupRoot, name)) {
		if _, err := os.Stat(path); err == nil {
			errs = append(errs, fmt.Errorf("left behind: cgroup %s", path))
		}
	}
	return errors.Join(append(errs, checkProcesses(dir))...)
}

// checkProcesses finds processes that still refer to dir.
func checkProcesses(dir string) error {
	found, err := filepath.Glob("/proc/[0-9]*/environ")
	errs := []error{err}
	for _, path := range found {
		environ, err := os.ReadFile(path)
		if err != nil { // the process has just ended
			continue
		}
		if bytes.Contains(environ, []byte(dirVariable+"="+dir)) {
			command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			errs = append(errs, fmt.Errorf("left behind: process %s: %s", filepath.Dir(path), bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
		}
	}
	return errors.Join(errs...)
}
