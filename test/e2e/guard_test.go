//go:build e2e

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tunables are the kernel settings that a kubelet changes for the whole machine.
var tunables = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// guardProcess is the guard, as seen by the outer process.
type guardProcess struct {
	command *exec.Cmd
	input   io.WriteCloser
}

// startGuard starts a guard for dir. The guard has its own POSIX session, so that Ctrl-C does not end it first.
func startGuard(dir string) (*guardProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(self)
	command.Env = append(os.Environ(), roleVariable+"=guard", dirVariable+"="+dir)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	g := &guardProcess{command: command, input: input}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	for _, name := range tunables {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err == nil { // a kernel without the setting has nothing to restore
			_, _ = fmt.Fprintln(input, "tunable", name, strings.TrimSpace(string(value)))
		}
	}
	return g, nil
}

func (g *guardProcess) add(pid int)  { _, _ = fmt.Fprintln(g.input, "add", pid) }
func (g *guardProcess) drop(pid int) { _, _ = fmt.Fprintln(g.input, "drop", pid) }

// stop tells the guard to clean up, and returns its errors.
func (g *guardProcess) stop() error {
	_ = g.input.Close()
	if err := g.command.Wait(); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}

// guard reads until the outer process is done or has ended, and then ends and removes everything that is left.
func guard(input io.Reader) error {
	dir := os.Getenv(dirVariable)
	processes, values := map[int]bool{}, map[string]string{}
	lines := bufio.NewScanner(input)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		name, value, _ := strings.Cut(rest, " ")
		if verb == "tunable" {
			values[name] = value
			continue
		}
		pid, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		processes[pid] = verb == "add"
	}
	var errs []error
	for pid, left := range processes {
		if left {
			errs = append(errs, end(pid))
		}
	}
	for name, value := range values {
		errs = append(errs, restore(filepath.Join("/proc/sys", name), value))
	}
	return errors.Join(append(errs, removeCgroups(filepath.Base(dir)), os.RemoveAll(dir))...)
}

// end kills the first process of the namespaces. It has ended once all other processes there have.
func end(pid int) error {
	_ = syscall.Kill(pid, syscall.SIGKILL)
	for range 300 {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(stat), ") Z ") {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("process %d does not end", pid)
}

func restore(path, value string) error {
	if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) == value {
		return nil
	}
	return os.WriteFile(path, []byte(value), 0)
}
