package reliability

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// replica is a running process of the program. When it is killed, a successor takes its place in the world.
type replica struct {
	*cluster.Process
	program string // its path
	number  int
	probes  string
	metrics string
	audit   string
	idle    float64 // its goroutines before the fault
	killed  bool
}

const commonConfig = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
`

// startReplica starts a process of the program, through the proxy.
func (w *world) startReplica(elect bool) *replica {
	w.t.Helper()
	if w.theirs {
		return w.startTheirs(elect, w.proxy.Config)
	}
	binary, err := w.binary, error(nil)
	if binary == "" {
		binary, err = cluster.Manager()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	r := &replica{program: binary, number: w.started(), probes: w.freeAddress(), metrics: w.freeAddress()}
	r.audit = fmt.Sprint(w.audit, r.number)
	config := filepath.Join(w.Dir, "config.yaml")
	if w.config == "" {
		w.config = "approval: {kubeletServing: {enabled: true}}\n"
	}
	if err := os.WriteFile(config, []byte(commonConfig+w.config), 0o600); err != nil {
		w.t.Fatal(err)
	}
	cfg := rest.CopyConfig(w.proxy.Config)
	cfg.CAData = slices.Concat(cfg.CAData, w.Config.CAData) // a rotation also asks the API server itself
	kubeconfig, err := w.WriteKubeconfig("manager", cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	if r.Process, err = w.StartProcess("ours", "env", slices.Concat(w.environment, []string{
		binary, "--kubeconfig", kubeconfig, "--config", config, "--signing-secret", kit.SystemNamespace + "/" + signingSecret,
		"--leader-elect-resource-namespace", kit.SystemNamespace, "--leader-elect=" + strconv.FormatBool(elect),
		"--audit-log-path", r.audit, "--health-probe-bind-address", r.probes, "--metrics-bind-address", r.metrics,
	}, w.leaseFlags(), w.args)...); err != nil {
		w.t.Fatal(err)
	}
	w.add(r)
	return r
}

// leaseFlags make the Lease end within four seconds in the scenarios with several replicas: there a leader is killed or
// paused every few seconds, and must have a successor. Both programs have these flags.
func (w *world) leaseFlags() []string {
	if !w.shortLease {
		return nil
	}
	return []string{"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms"}
}

func (w *world) started() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.replicas)
}

// add makes r a replica of w, and ends it with the test.
func (w *world) add(r *replica) {
	w.t.Cleanup(func() {
		if r.Ended() == nil {
			r.Kill()
		}
	})
	w.mu.Lock()
	w.replicas = append(w.replicas, r)
	w.mu.Unlock()
	if w.ahead != 0 {
		w.shiftClock(r, w.ahead)
	}
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
	r := &replica{program: os.Getenv("KUBE_CONTROLLER_MANAGER"), number: w.started()}
	kubeconfig, err := w.WriteKubeconfig("theirs", cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	if r.Process, err = w.StartProcess("theirs", "env", slices.Concat(w.environment, []string{
		r.program, "--kubeconfig", kubeconfig, "--controllers=csrapproving,csrsigning,csrcleaner",
		"--secure-port=0", "--leader-elect=" + strconv.FormatBool(elect), "--kube-api-qps=10000", "--kube-api-burst=10000",
		"--cluster-signing-cert-file=" + filepath.Join(w.Dir, theirCert), "--cluster-signing-key-file=" + filepath.Join(w.Dir, theirKey),
	}, w.leaseFlags())...); err != nil {
		w.t.Fatal(err)
	}
	w.add(r)
	return r
}

func (w *world) freeAddress() string {
	w.t.Helper()
	address, err := cluster.FreeAddress()
	if err != nil {
		w.t.Fatal(err)
	}
	return address
}

// kill ends r without warning, as the kernel does when memory is short.
func (r *replica) kill() {
	r.killed = true
	r.Kill()
}

// signal sends SIGSTOP or SIGCONT.
func (r *replica) signal(s syscall.Signal) error { return syscall.Kill(r.Pid(), s) }

// page returns the status and the text of a page of r, or 0 if it does not answer.
func (r *replica) page(ctx context.Context, address, path string) (int, string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return cluster.Get(ctx, address, path)
}

// ready reports whether r says that it is ready.
func (r *replica) ready(ctx context.Context) bool {
	status, _ := r.page(ctx, r.probes, "/readyz")
	return status == http.StatusOK
}

// metric returns the sum of all series of a metric whose text begins with name, or -1 if it can't be read.
func (r *replica) metric(ctx context.Context, name string) float64 {
	status, page := r.page(ctx, r.metrics, "/metrics")
	if status != http.StatusOK {
		return -1
	}
	if value, found := sum(page, name); found {
		return value
	}
	return -1
}
