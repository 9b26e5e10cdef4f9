package parity

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
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
	// ours says that each controller is a process with an identity of its own. kube-controller-manager is one process and an administrator.
	ours bool
}

// uncleaning are the minor versions of Kubernetes whose kube-controller-manager can't be seen to clean. Version 1.34 makes its first pass
// before it starts its informers, and the next one an hour later: in eight of eight starts it deleted nothing. For them, the rows of the
// cleaner only compare our manager with the table.
var uncleaning = []string{"34"}

func kubeControllerManager(binary string) program {
	return program{
		id: "kcm", binary: binary, passes: 2,
		// The controllers start a second or two late, when the cache is filled: the cleaner's only pass of the hour
		// does not wait for the cache.
		args: []string{"--secure-port=0", "--controller-start-interval=1s", "--kube-api-qps=10000", "--kube-api-burst=10000"},
	}
}

func csrControllerManager(binary string) program {
	return program{
		id: "own", binary: binary, passes: 1, ours: true,
		args: []string{"--metrics-bind-address=0", "--health-probe-bind-address=0"},
	}
}

// running is a program that runs.
type running struct {
	ours      bool
	processes []*cluster.Process
}

// controllersFlag begins the flag with the controllers of a start.
const controllersFlag = "--controllers="

// start runs the program until stop or the end of the test. args must have controllersFlag.
func (p program) start(t *testing.T, on *env, args ...string) *running {
	t.Helper()
	r := &running{ours: p.ours}
	t.Cleanup(func() { r.stop(t) })
	begin := func(args []string, kubeconfig string) {
		started, err := on.StartProcess(p.id, p.binary, append(slices.Clone(args), "--kubeconfig="+on.kubeconfigs[kubeconfig])...)
		kit.NoError(t, err)
		r.processes = append(r.processes, started)
	}
	args = slices.Concat([]string{"--leader-elect=false"}, args, p.args)
	if !p.ours {
		begin(args, "")
		return r
	}
	at := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, controllersFlag) })
	for name := range strings.SplitSeq(strings.TrimPrefix(args[at], controllersFlag), ",") {
		args[at] = controllersFlag + name
		begin(args, name)
	}
	return r
}

// stop stops the processes that run. kube-controller-manager, which has no Lease here, may be killed.
func (r *running) stop(t *testing.T) {
	t.Helper()
	for _, p := range r.processes {
		if p.Ended() != nil {
			continue
		}
		if !r.ours {
			p.Kill()
		} else if err := p.Stop(); err != nil {
			t.Errorf("it did not stop cleanly: %v\n%s", err, r.tail())
		}
	}
}

// check stops the program. It fails the test if a process stopped before, or with an error, or lacked a right.
func (r *running) check(t *testing.T) {
	t.Helper()
	if r.over() {
		t.Errorf("%v:\n%s", errEnded, r.tail())
	}
	r.stop(t)
	for line := range strings.Lines(r.text(t)) {
		// The authorizer writes "User", and the admission of approvals and certificates "user".
		if r.ours && strings.Contains(strings.ToLower(line), "is forbidden: user") {
			t.Errorf("ours exceeds the shipped roles: %s", line)
		}
	}
}

// over reports whether a process of the program has ended.
func (r *running) over() bool {
	return slices.ContainsFunc(r.processes, func(p *cluster.Process) bool { return p.Ended() != nil })
}

// text returns the logs.
func (r *running) text(t *testing.T) (all string) {
	t.Helper()
	for _, p := range r.processes {
		text, err := p.Log()
		if err != nil {
			t.Error(err)
		}
		all += text
	}
	return all
}

// tail returns the end of each log.
func (r *running) tail() (all string) {
	for _, p := range r.processes {
		all += p.Tail(30) + "\n"
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
	kit.NoError(t, err)
	return binary
}
