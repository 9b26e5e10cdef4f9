package reliability

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/clock"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// replica is a running process of the program. When it is killed, a successor takes its place in the world.
type replica struct {
	*cluster.Process
	program string // its path
	number  int
	// The addresses and the audit log are those of ours only.
	probes, metrics, audit string
	idle                   float64 // its goroutines before the fault
	killed                 bool    // its end is no fault
}

// startReplica starts a process of the program, through the proxy.
func (w *world) startReplica(elect bool) *replica {
	w.t.Helper()
	if w.theirs {
		return w.startTheirs(elect, w.proxy.Config)
	}
	r := &replica{program: w.binary, probes: kit.FreeAddress(w.t), metrics: kit.FreeAddress(w.t), audit: fmt.Sprint(w.audit, len(w.replicas))}
	if r.program == "" {
		var err error
		r.program, err = cluster.Manager()
		kit.NoError(w.t, err)
	}
	if w.config == "" {
		w.config = "approval: {kubeletServing: {enabled: true}}\n"
	}
	cfg := rest.CopyConfig(w.proxy.Config)
	cfg.CAData = slices.Concat(cfg.CAData, w.Config.CAData) // a rotation also asks the API server itself
	return w.start(r, "ours", cfg, elect, slices.Concat(kit.StandardArgs, []string{
		kit.Configure(w.t, w.config), "--audit-log-path", r.audit, "--health-probe-bind-address", r.probes, "--metrics-bind-address", r.metrics,
	}, w.args)...)
}

// theirAccountName is the ServiceAccount of kube-controller-manager's three loops, and theirRole has its rights. theirCert and theirKey are the
// files of the CA.
const (
	theirAccountName    = "certificate-controller"
	theirRole           = "system:controller:certificate-controller"
	theirCert, theirKey = "theirs.crt", "theirs.key"
)

func (w *world) writeTheirCA(cert, key []byte) error {
	return errors.Join(os.WriteFile(filepath.Join(w.Dir, theirCert), cert, 0o600), os.WriteFile(filepath.Join(w.Dir, theirKey), key, 0o600))
}

// startTheirs starts kube-controller-manager with the CA of writeTheirCA.
func (w *world) startTheirs(elect bool, cfg *rest.Config) *replica {
	w.t.Helper()
	return w.start(&replica{program: os.Getenv("KUBE_CONTROLLER_MANAGER")}, "theirs", cfg, elect,
		"--controllers=csrapproving,csrsigning,csrcleaner", "--secure-port=0", "--kube-api-qps=10000", "--kube-api-burst=10000",
		"--cluster-signing-cert-file="+filepath.Join(w.Dir, theirCert), "--cluster-signing-key-file="+filepath.Join(w.Dir, theirKey))
}

// start starts r, adds it to w, and ends it with the test. In scenarios with several replicas a leader is killed or paused every few
// seconds, and must have a successor, so its Lease ends within four seconds. Both programs have these flags.
func (w *world) start(r *replica, name string, cfg *rest.Config, elect bool, args ...string) *replica {
	w.t.Helper()
	kubeconfig, err := w.WriteKubeconfig(name, cfg)
	kit.NoError(w.t, err)
	line := slices.Concat(w.environment, []string{r.program, "--kubeconfig", kubeconfig, "--leader-elect=" + strconv.FormatBool(elect)}, args)
	if w.shortLease {
		line = append(line, "--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms")
	}
	r.Process, err = w.StartProcess(name, "env", line...)
	kit.NoError(w.t, err)
	w.t.Cleanup(r.Kill)
	w.mu.Lock()
	r.number, w.replicas = len(w.replicas), append(w.replicas, r)
	w.mu.Unlock()
	if w.ahead != 0 {
		w.shiftClock(r, w.ahead)
	}
	return r
}

// shiftClock shifts the clock of r. The kernel gives a process a new clock when it executes another program, so shiftClock waits until
// env has executed the program.
func (w *world) shiftClock(r *replica, by time.Duration) {
	w.t.Helper()
	if !w.poll(5*time.Second, func(context.Context) bool {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.Pid()))
		return err == nil && filepath.Base(name) == filepath.Base(r.program)
	}) {
		w.t.Fatalf("%s does not start", r.program)
	}
	kit.NoError(w.t, clock.Shift(r.Pid(), by))
}

// running returns the replicas of ours that have not ended.
func (w *world) running() (all []*replica) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.replicas {
		if r.Ended() == nil && r.probes != "" {
			all = append(all, r)
		}
	}
	return all
}

// oldest returns the replica that has run longest. It leads, unless it is paused.
func (w *world) oldest() *replica {
	for _, r := range w.replicas {
		if r.Ended() == nil {
			return r
		}
	}
	w.t.Fatal("no replica runs")
	return nil
}

// kill ends r without warning, as the kernel does when memory is short.
func (r *replica) kill() {
	r.killed = true
	r.Kill()
}

// signal sends SIGSTOP or SIGCONT.
func (w *world) signal(r *replica, s syscall.Signal) {
	w.t.Helper()
	if err := syscall.Kill(r.Pid(), s); err != nil {
		w.t.Fatalf("%s to replica %d: %v: %s", s, r.number, err, r.Tail(20))
	}
}

// page returns the status and the text of a page of r, or 0 if it does not answer.
func (r *replica) page(ctx context.Context, address, path string) (int, string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return cluster.Get(ctx, address, path)
}

// ready reports whether r says that it is ready.
func (r *replica) ready(ctx context.Context) bool {
	status, _ := r.page(ctx, r.probes, "/readyz")
	return status == 200
}

// metric returns the sum of all series of a metric whose text begins with name, or -1 if it can't be read.
func (r *replica) metric(ctx context.Context, name string) float64 {
	status, page := r.page(ctx, r.metrics, "/metrics")
	if value, found := sum(page, name); found && status == 200 {
		return value
	}
	return -1
}
