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

// program is one of the two that are compared.
type program struct {
	// id is a part of the names of its requests.
	id     string
	binary string
	args   []string
	// passes is how many starts of the cleaner must have seen what is old before what is still there counts as kept. Zero
	// leaves the rows of the cleaner out.
	passes int
	// stop ends it; one that keeps no Lease may be killed.
	stop syscall.Signal
	ours bool
}

// firstCleaningMinor is the first minor version of Kubernetes whose kube-controller-manager can be seen to clean.
// Version 1.34 makes its first pass before it starts its informers, and the next one an hour later: in eight starts out
// of eight it deleted nothing. So there the rows of the cleaner hold our manager to the table only.
const firstCleaningMinor = 35

func kubeControllerManager(binary string) program {
	return program{
		id: "kcm", binary: binary, passes: 2, stop: syscall.SIGKILL,
		// The controllers start a second or two late, when the cache is filled: the cleaner's only pass of the hour does
		// not wait for it.
		args: []string{"--secure-port=0", "--controller-start-interval=1s", "--kube-api-qps=10000", "--kube-api-burst=10000"},
	}
}

func csrControllerManager(binary string) program {
	return program{
		id: "own", binary: binary, passes: 1, stop: syscall.SIGTERM, ours: true,
		args: []string{"--metrics-bind-address=0", "--health-probe-bind-address=0"},
	}
}

// process is a program that runs.
type process struct {
	cmd    *exec.Cmd
	log    string
	ended  chan struct{}
	cancel context.CancelFunc
}

// start runs the program until stop or the end of the test.
func (p program) start(t *testing.T, on *env, args ...string) *process {
	t.Helper()
	log, err := os.CreateTemp(on.Dir, p.id+"-*.log") // the guard removes that folder, whatever ends the test
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

// check fails the test when the process ended by itself, or was not clean.
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

// over is whether it has ended.
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

// ownBinary is the one of this tree, or what PARITY_BINARY names.
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
