package parity

import (
	"os"
	"slices"
	"strings"
	"testing"

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
		id: "kcm", binary: binary, passes: 2,
		// The controllers start a second or two late, when the cache is filled: the cleaner's only pass of the hour
		// does not wait for the cache.
		args: []string{"--secure-port=0", "--controller-start-interval=1s", "--kube-api-qps=10000", "--kube-api-burst=10000"},
	}
}

func csrControllerManager(binary string) program {
	return program{
		id: "own", binary: binary, passes: 1,
		identities: map[string]string{"csrapproving": "csr-approver", "csrsigning": "csr-signer", "csrcleaner": "csr-cleaner"},
		args:       []string{"--metrics-bind-address=0", "--health-probe-bind-address=0"},
	}
}

// process is a process of a running program.
type process struct {
	*cluster.Process
	kill bool // A program without a Lease may be killed.
	err  error
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
	started, err := on.StartProcess(p.id, p.binary, args...) // its log is in the folder that the guard removes, however the test ends
	if err != nil {
		t.Fatal(err)
	}
	made := &process{Process: started, kill: !p.ours()}
	t.Cleanup(made.stop)
	return made
}

func (p *process) stop() {
	switch {
	case p.Ended() != nil:
	case p.kill:
		p.Kill()
	default:
		p.err = p.Stop()
	}
}

// check stops the program. It fails the test if a process stopped before, or with an error, or lacked a right.
func (r running) check(t *testing.T, ours bool) {
	t.Helper()
	for _, p := range r {
		if state := p.Ended(); state != nil {
			t.Errorf("%v: %s\n%s", errEnded, state, r.tail(t))
			continue
		}
		if p.stop(); p.err != nil {
			t.Errorf("it did not stop cleanly: %v\n%s", p.err, r.tail(t))
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
func (r running) over() bool {
	return slices.ContainsFunc(r, func(p *process) bool { return p.Ended() != nil })
}

// text returns the logs.
func (r running) text(t *testing.T) (all string) {
	t.Helper()
	for _, p := range r {
		text, err := p.Log()
		if err != nil {
			t.Error(err)
		}
		all += text
	}
	return all
}

// tail returns the end of each log.
func (r running) tail(t *testing.T) (all string) {
	t.Helper()
	for _, p := range r {
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
	if err != nil {
		t.Fatal(err)
	}
	return binary
}
