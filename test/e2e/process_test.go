//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// endPatience is the time that a program has to end.
const endPatience = 30 * time.Second

// process is a program that runs until stop or kill. If neither is called, it ends with the namespaces.
type process struct {
	name    string
	command *exec.Cmd
	done    chan struct{}
}

// startProcess runs command. Its output is appended to the log of that name.
func startProcess(dir, name string, command *exec.Cmd) (*process, error) {
	if err := os.MkdirAll(logDir(dir), 0o700); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(logDir(dir), name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	command.Stdout, command.Stderr = log, log
	p := &process{name: name, command: command, done: make(chan struct{})}
	if err := command.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	go func() {
		_ = command.Wait() // ProcessState holds the result
		_ = log.Close()
		close(p.done)
	}()
	return p, nil
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

// kill ends the process at once.
func (p *process) kill() error { return p.end(syscall.SIGKILL) }

// end sends a signal and waits for the end of the process.
func (p *process) end(signal syscall.Signal) error {
	pid, err := p.pid()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("end %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(endPatience):
		return fmt.Errorf("%s does not end within %s of %s", p.name, endPatience, signal)
	}
}

// pid returns the program's process ID. If nsenter runs the program, it is the ID of nsenter's child.
func (p *process) pid() (int, error) {
	pid := p.command.Process.Pid
	if filepath.Base(p.command.Path) != "nsenter" {
		return pid, nil
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, fmt.Errorf("find the process of %s: %w", p.name, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(children)))
}

// run runs a program to its end and returns its output.
func run(command *exec.Cmd) (string, error) {
	output, err := command.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("%s: %w\n%s", strings.Join(command.Args, " "), err, output)
	}
	return string(output), nil
}
