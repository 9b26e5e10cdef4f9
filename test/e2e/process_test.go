//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// process is a program that runs until end or kill. If neither is called, it ends with the namespaces.
type process struct {
	name    string
	log     string // the file with its output
	command *exec.Cmd
	done    chan struct{}
}

// startProcess runs command. Its output is appended to the log of that name.
func startProcess(t *testing.T, dir, name string, command *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, log: filepath.Join(logDir(dir), name+".log"), command: command, done: make(chan struct{})}
	kit.NoError(t, os.MkdirAll(logDir(dir), 0o700))
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	kit.NoError(t, err)
	command.Stdout, command.Stderr = log, log
	kit.NoError(t, command.Start())
	go func() {
		_ = command.Wait() // ProcessState holds the result
		_ = log.Close()
		close(p.done)
	}()
	return p
}

// ended returns the state of the ended process, and nil while it runs.
func (p *process) ended() *os.ProcessState {
	select {
	case <-p.done:
		return p.command.ProcessState
	default:
		return nil
	}
}

// end sends a signal and waits for the end of the process. If nsenter runs the program, the signal is for nsenter's child.
func (p *process) end(signal syscall.Signal) error {
	pid := p.command.Process.Pid
	if filepath.Base(p.command.Path) == "nsenter" {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(children)))
		}
		if err != nil {
			return fmt.Errorf("find the process of %s: %w", p.name, err)
		}
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("end %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%s does not end within 30 s of %s", p.name, signal)
	}
}

// kill ends the process at once.
func (p *process) kill(t *testing.T) {
	t.Helper()
	kit.NoError(t, p.end(syscall.SIGKILL))
}

// run runs a program to its end and returns its output.
func run(command *exec.Cmd) (string, error) {
	output, err := command.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("%s: %w\n%s", strings.Join(command.Args, " "), err, output)
	}
	return string(output), nil
}

// mustRun is run for a program that must succeed.
func mustRun(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	output, err := run(command)
	kit.NoError(t, err)
	return output
}

// read returns the content of a file.
func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	kit.NoError(t, err)
	return data
}

// until fails the test unless done reports success in time. After an error it tries again.
func until(t *testing.T, timeout time.Duration, what string, done func(context.Context) (bool, error)) {
	t.Helper()
	kit.Within(t, timeout, what, func(ctx context.Context) error {
		ok, err := done(ctx)
		if err == nil && !ok {
			err = errors.New("not yet")
		}
		return err
	})
}
