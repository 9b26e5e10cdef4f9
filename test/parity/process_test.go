package parity

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// program is one of the two programs that are compared.
type program struct {
	// id is a part of the names of the program's requests.
	id     string
	binary string
	args   []string
	// passes is the number of starts of the cleaner that must have seen the old requests before a remaining request
	// counts as kept. Zero leaves out the rows of the cleaner.
	passes int
	// stop is the signal that ends the program. A program without a Lease may be killed.
	stop syscall.Signal
	ours bool
}

// firstCleaningMinor is the first minor version of Kubernetes whose kube-controller-manager can be seen to clean.
// Version 1.34 makes its first pass before it starts its informers, and the next one an hour later: in eight of eight
// starts it deleted nothing. For older versions, the rows of the cleaner only compare our manager with the table.
const firstCleaningMinor = 35

func kubeControllerManager(binary string) program {
	return program{
		id: "kcm", binary: binary, passes: 2, stop: syscall.SIGKILL,
		// The controllers start a second or two late, when the cache is filled: the cleaner's only pass of the hour
		// does not wait for the cache.
		args: []string{"--secure-port=0", "--controller-start-interval=1s", "--kube-api-qps=10000", "--kube-api-burst=10000"},
	}
}

func csrControllerManager(binary string) program {
	return program{
		id: "own", binary: binary, passes: 1, stop: syscall.SIGTERM, ours: true,
		args: []string{"--metrics-bind-address=0", "--health-probe-bind-address=0"},
	}
}

// process is a running program.
type process struct {
	cmd    *exec.Cmd
	log    string
	ended  chan struct{}
	cancel context.CancelFunc
}

// start runs the program until stop or the end of the test.
func (p program) start(t *testing.T, on *env, args ...string) *process {
	t.Helper()
	log, err := os.CreateTemp(on.Dir, p.id+"-*.log") // the guard removes that folder, however the test ends
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	running := &process{log: log.Name(), ended: make(chan struct{}), cancel: cancel}
	running.cmd = exec.CommandContext(ctx, p.binary, slices.Concat(on.common, args, p.args)...)
	running.cmd.Stdout, running.cmd.Stderr = log, log
	running.cmd.Cancel = func() error { return running.cmd.Process.Signal(p.stop) }
	running.cmd.WaitDelay = 15 * time.Second
	if err := running.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	release := on.Guard(running.cmd.Process)
	go func() {
		_ = running.cmd.Wait()
		release()
		_ = log.Close()
		close(running.ended)
	}()
	t.Cleanup(running.stop)
	return running
}

func (p *process) stop() {
	p.cancel()
	<-p.ended
}

// check fails the test if the process stopped unexpectedly, or with an error.
func (p *process) check(t *testing.T, ours bool) {
	t.Helper()
	if p.over() {
		t.Errorf("%v: %s: %s\n%s", errEnded, p.cmd.Path, p.cmd.ProcessState, p.tail(t))
		return
	}
	p.stop()
	if ours && !p.cmd.ProcessState.Success() {
		t.Errorf("%s did not stop cleanly: %s\n%s", p.cmd.Path, p.cmd.ProcessState, p.tail(t))
	}
}

// over reports whether the process has ended.
func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

func (p *process) tail(t *testing.T) string {
	t.Helper()
	lines := strings.Split(p.text(t), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// ownBinary returns the binary of this tree, or PARITY_BINARY.
func (e *env) ownBinary(t *testing.T) string {
	t.Helper()
	if binary := os.Getenv("PARITY_BINARY"); binary != "" {
		return binary
	}
	binary, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}
