package parity

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
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
	// passes is how many starts of the cleaner must have seen what is old before what is still there counts as kept.
	passes int
	// stop ends it; one that keeps no Lease may be killed.
	stop syscall.Signal
	ours bool
}

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
func (p program) start(t *testing.T, on *cluster.Cluster, args ...string) *process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), p.id+".log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:usetesting // the end of t's would come before its clean-up
	running := &process{log: log.Name(), ended: make(chan struct{}), cancel: cancel}
	running.cmd = exec.CommandContext(ctx, p.binary, append(args, p.args...)...)
	running.cmd.Stdout, running.cmd.Stderr = log, log
	running.cmd.Cancel = func() error { return running.cmd.Process.Signal(p.stop) }
	running.cmd.WaitDelay = 15 * time.Second
	if err := running.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	on.Guard(running.cmd.Process)
	go func() {
		_ = running.cmd.Wait()
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
	select {
	case <-p.ended:
		t.Errorf("%s ended: %s\n%s", p.cmd.Path, p.cmd.ProcessState, p.tail(t))
		return
	default:
	}
	p.stop()
	if ours && !p.cmd.ProcessState.Success() {
		t.Errorf("%s did not stop cleanly: %s\n%s", p.cmd.Path, p.cmd.ProcessState, p.tail(t))
	}
}

func (p *process) tail(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Error(err)
	}
	lines := bytes.Split(text, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-30):], []byte("\n")))
}

// ownBinary is the one of this tree, or what PARITY_BINARY names.
func ownBinary(t *testing.T) string {
	t.Helper()
	if binary := os.Getenv("PARITY_BINARY"); binary != "" {
		return binary
	}
	binary := filepath.Join(t.TempDir(), "csr-controller-manager")
	if err := cluster.BuildManager(t.Context(), "../..", binary); err != nil {
		t.Fatal(err)
	}
	return binary
}
