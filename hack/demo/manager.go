package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is the csr-controller-manager that runs beside the demo.
type process struct {
	cmd     *exec.Cmd
	logFile string
	health  string
	done    chan struct{} // closed when the process has ended, with err
	err     error
}

// startManager starts binary as anybody would on a plain control plane, and calls ended when it ends.
func startManager(binary, kubeconfig, dir string, ended context.CancelCauseFunc) (*process, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	p := &process{logFile: filepath.Join(dir, "manager.log"), health: address, done: make(chan struct{})}
	out, err := os.Create(p.logFile)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(binary, "--kubeconfig", kubeconfig, "--signing-secret", signingSecret,
		"--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", address, "-v", "1")
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the demo, which then stops it
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the manager: %w", err), out.Close())
	}
	go func() {
		p.err = errors.Join(p.cmd.Wait(), out.Close())
		close(p.done)
		ended(fmt.Errorf("the manager has ended by itself: %s", p.cmd.ProcessState))
	}()
	return p, nil
}

// ready waits until the manager's /readyz says so: it has a CA to sign with.
func (p *process) ready(ctx context.Context) error {
	return until(ctx, "the manager is ready", func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.health+"/readyz", nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil // it does not listen yet
		}
		return response.StatusCode == http.StatusOK, response.Body.Close()
	})
}

// stop asks the manager to end, and demands that it does so in time and without complaint.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("the manager did not stop within %s", patience)
	}
}

func (p *process) lastLines(count int) string {
	data, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}
