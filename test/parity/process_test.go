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

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
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
	// identities are the ServiceAccounts of ours by controller. Each controller is a process. kube-controller-manager is one process
	// and an administrator.
	identities map[string]string
}

// ours reports whether the program is ours.
func (p program) ours() bool { return p.identities != nil }

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
		id: "own", binary: binary, passes: 1, stop: syscall.SIGTERM,
		identities: map[string]string{"csrapproving": "csr-approver", "csrsigning": "csr-signer", "csrcleaner": "csr-cleaner"},
		args:       []string{"--metrics-bind-address=0", "--health-probe-bind-address=0"},
	}
}

// process is a process of a running program.
type process struct {
	cmd    *exec.Cmd
	log    string
	ended  chan struct{}
	cancel context.CancelFunc
}

// running is a program that runs.
type running []*process

// controllersFlag begins the flag with the controllers of a start.
const controllersFlag = "--controllers="

// start runs the program until stop or the end of the test. args must have controllersFlag.
func (p program) start(t *testing.T, on *env, args ...string) running {
	t.Helper()
	args = slices.Concat(on.common, args, p.args)
	if !p.ours() {
		return running{p.startProcess(t, on, append(args, "--kubeconfig="+on.kubeconfigs[""])...)}
	}
	at := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, controllersFlag) })
	controllers := strings.TrimPrefix(args[at], controllersFlag)
	var all running
	for name := range strings.SplitSeq(controllers, ",") {
		args[at] = controllersFlag + name
		all = append(all, p.startProcess(t, on, append(slices.Clone(args), "--kubeconfig="+on.kubeconfigs[p.identities[name]])...))
	}
	return all
}

func (p program) startProcess(t *testing.T, on *env, args ...string) *process {
	t.Helper()
	log, err := os.CreateTemp(on.Dir, p.id+"-*.log") // the guard removes that folder, however the test ends
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	made := &process{log: log.Name(), ended: make(chan struct{}), cancel: cancel}
	made.cmd = exec.CommandContext(ctx, p.binary, args...)
	made.cmd.Stdout, made.cmd.Stderr = log, log
	made.cmd.Cancel = func() error { return made.cmd.Process.Signal(p.stop) }
	made.cmd.WaitDelay = 15 * time.Second
	if err := made.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	release := on.Guard(made.cmd.Process)
	go func() {
		_ = made.cmd.Wait()
		release()
		_ = log.Close()
		close(made.ended)
	}()
	t.Cleanup(made.stop)
	return made
}

func (p *process) stop() {
	p.cancel()
	<-p.ended
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

// check stops the program. It fails the test if a process stopped before, or with an error, or lacked a right.
func (r running) check(t *testing.T, ours bool) {
	t.Helper()
	for _, p := range r {
		if p.over() {
			t.Errorf("%v: %s: %s\n%s", errEnded, p.cmd.Path, p.cmd.ProcessState, r.tail(t))
			continue
		}
		p.stop()
		if ours && !p.cmd.ProcessState.Success() {
			t.Errorf("%s did not stop cleanly: %s\n%s", p.cmd.Path, p.cmd.ProcessState, r.tail(t))
		}
	}
	for line := range strings.Lines(r.text(t)) {
		// The authorizer writes "User", and the admission of approvals and certificates "user".
		if ours && strings.Contains(strings.ToLower(line), "is forbidden: user") {
			t.Errorf("ours exceeds the shipped roles: %s", line)
		}
	}
}

func (r running) stop() {
	for _, p := range r {
		p.stop()
	}
}

// over reports whether a process of the program has ended.
func (r running) over() bool { return slices.ContainsFunc(r, (*process).over) }

// text returns the logs.
func (r running) text(t *testing.T) (all string) {
	t.Helper()
	for _, p := range r {
		text, err := os.ReadFile(p.log)
		if err != nil {
			t.Error(err)
		}
		all += string(text)
	}
	return all
}

// tail returns the end of each log.
func (r running) tail(t *testing.T) (all string) {
	t.Helper()
	for _, p := range r {
		lines := strings.Split(running{p}.text(t), "\n")
		all += strings.Join(lines[max(0, len(lines)-30):], "\n")
	}
	return all
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
