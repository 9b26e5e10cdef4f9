package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// stopGrace is how long a process may take to end before it is killed.
const stopGrace = 20 * time.Second

// Process is a program that runs beside the control plane.
type Process struct {
	// LogFile holds all that it writes.
	LogFile string
	// Done is closed when it has ended.
	Done chan struct{}

	command *exec.Cmd
	err     error // how it ended
}

// StartProcess runs binary until Stop or Kill, or until this process ends. name is a part of its log file's.
func (c *Cluster) StartProcess(name, binary string, args ...string) (*Process, error) {
	log, err := os.CreateTemp(c.Dir, name+"-*.log")
	if err != nil {
		return nil, err
	}
	p := &Process{LogFile: log.Name(), Done: make(chan struct{}), command: exec.Command(binary, args...)}
	p.command.Stdout, p.command.Stderr = log, log
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for whoever stops it then
	if err := p.command.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	release := c.Guard(p.command.Process)
	go func() {
		p.err = errors.Join(p.command.Wait(), log.Close())
		release()
		close(p.Done)
	}()
	return p, nil
}

// Pid is its process id.
func (p *Process) Pid() int { return p.command.Process.Pid }

// Ended returns how it ended, and nil while it runs.
func (p *Process) Ended() *os.ProcessState {
	select {
	case <-p.Done:
		return p.command.ProcessState
	default:
		return nil
	}
}

// Stop asks it to end, and returns an error unless it does so in time and without complaint.
func (p *Process) Stop() error {
	_ = p.command.Process.Signal(syscall.SIGTERM) // it may have ended already
	timeout := time.NewTimer(stopGrace)
	defer timeout.Stop()
	select {
	case <-p.Done:
		return p.err
	case <-timeout.C:
		p.Kill()
		return fmt.Errorf("%s did not stop within %s", p.command.Path, stopGrace)
	}
}

// Kill ends it at once.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.Done
}

// Log returns what it has written.
func (p *Process) Log() (string, error) {
	data, err := os.ReadFile(p.LogFile)
	return string(data), err
}

// Tail returns the last lines of the log, or why there are none.
func (p *Process) Tail(count int) string {
	text, err := p.Log()
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// FreeAddress returns an address that a process can listen on.
func FreeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}
