package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a process may take to end before it is killed.
const stopGrace = 20 * time.Second

// Process is a program that runs beside the control plane.
type Process struct {
	// LogFile holds the output of the process.
	LogFile string
	// Done is closed when the process has ended.
	Done chan struct{}

	command *exec.Cmd
	err     error // the exit status
}

// StartProcess runs binary until Stop or Kill, or until this process ends. name is a part of the log file's name.
func (c *Cluster) StartProcess(name, binary string, args ...string) (*Process, error) {
	log, err := os.CreateTemp(c.Dir, name+"-*.log")
	if err != nil {
		return nil, err
	}
	p := &Process{LogFile: log.Name(), Done: make(chan struct{}), command: exec.Command(binary, args...)}
	p.command.Stdout, p.command.Stderr = log, log
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process
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

// Pid returns the process ID.
func (p *Process) Pid() int { return p.command.Process.Pid }

// Ended returns the state of the ended process, and nil while it runs.
func (p *Process) Ended() *os.ProcessState {
	select {
	case <-p.Done:
		return p.command.ProcessState
	default:
		return nil
	}
}

// Stop asks the process to end. It returns an error unless the process ends in time and without an error.
func (p *Process) Stop() error {
	_ = p.command.Process.Signal(syscall.SIGTERM) // the process may have ended already
	select {
	case <-p.Done:
		return p.err
	case <-time.After(stopGrace):
		p.Kill()
		return fmt.Errorf("%s did not stop within %s", p.command.Path, stopGrace)
	}
}

// Kill ends the process at once.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.Done
}

// Log returns the output of the process.
func (p *Process) Log() (string, error) {
	data, err := os.ReadFile(p.LogFile)
	return string(data), err
}

// Tail returns the last lines of the log, or the reason why there are none.
func (p *Process) Tail(count int) string {
	text, err := p.Log()
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// Get returns the status and the text of a page at address, or 0 and the reason if nobody answers.
func Get(ctx context.Context, address, path string) (int, string) {
	return GetWith(ctx, http.DefaultClient, "http://"+address+path, "")
}

// GetWith is Get with a client, a URL and a token, which may be empty.
func GetWith(ctx context.Context, client *http.Client, url, token string) (int, string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

// Manager builds the manager once, and returns the path of the program. It has no race detector, which finds in it what it
// finds in csrenv, and costs much processor time. All test packages share the program. The working directory must be that of
// a package two levels below the module's root, as go test sets it.
var Manager = sync.OnceValues(func() (string, error) { return build("csr-controller-manager", ".") })

// Plugin builds the kubectl plugin as Manager builds the manager.
var Plugin = sync.OnceValues(func() (string, error) { return build("kubectl-csr", "./cmd/kubectl-csr") })

// build builds a package of the module, and returns the path of the program called name.
func build(name, folder string) (path string, err error) {
	root := filepath.Join("..", "..")
	path, err = filepath.Abs(filepath.Join(root, "bin", "test", name))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(path + ".lock")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // closing releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	command := exec.Command("go", "build", "-o", path, folder)
	command.Dir = root
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, output)
	}
	return path, nil
}
