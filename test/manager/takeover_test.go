package manager

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// kubeadmControllers is kubeadm's flag for kube-controller-manager.
const kubeadmControllers = "--controllers=*,bootstrapsigner,tokencleaner"

const theirs, ours = "kube-controller-manager", "csr-controller-manager"

const migrationPage = "migrate-from-kcm.md"

// howTo returns the text of a page.
func howTo(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "how-to", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// TestTakeover follows docs/how-to/migrate-from-kcm.md with the real kube-controller-manager and all of its controllers: dry run,
// both at once, taken over, and back with the same CA.
func TestTakeover(t *testing.T) {
	kit.Parallel(t)
	w := newTakeover(t)

	before := w.startTheirs(t, kubeadmControllers, w.caFlags(t)...)
	w.issuedBy(t, "before", theirs, theirs)

	// The dry run would decide as kube-controller-manager does, which does the work. It counts one or two requests: it knows
	// its own start to the second, and may judge the request of before.
	dry := w.startDryRun(t)
	w.issuedBy(t, "dry-run", theirs, theirs)
	dry.Answers(t, dry.Metrics, "/metrics", http.StatusOK, `csr_approver_dry_run_total{reason="AutoApproved",`+
		`signer="kubernetes.io/kube-apiserver-client-kubelet",verdict="Approve"} `)
	if err := dry.Stop(); err != nil {
		t.Fatal(err)
	}

	// With the same CA either one may approve and sign, and neither stumbles.
	beside := w.startOurs(t, w.caFlags(t)...)
	for i := range 20 {
		w.issued(t, fmt.Sprintf("beside-%d", i))
	}
	end(t, before)

	after := w.startTheirs(t, kubeadmControllers, append(w.caFlags(t), patchedFlags(t, "")...)...)
	w.issuedBy(t, "taken-over", ours, ours)

	// Without kubeadm there may be no other flag --controllers. The other controllers must still work.
	end(t, after)
	after = w.startTheirs(t, flagOfPage(t), w.caFlags(t)...)
	w.issuedBy(t, "by-hand", ours, ours)

	// Back with the same CA. Between the two, requests wait.
	if err := beside.Stop(); err != nil {
		t.Fatal(err)
	}
	pending := w.create(t, "nobody")
	w.staysPending(t, pending)
	end(t, after)
	w.startTheirs(t, kubeadmControllers, w.caFlags(t)...)
	w.reaches(t, pending, csr.Issued)
}

type takeover struct {
	*cluster.Cluster
	admin client.Client
}

// newTakeover starts a control plane without controllers.
func newTakeover(t *testing.T) *takeover {
	t.Helper()
	own, err := cluster.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := &takeover{Cluster: own}
	if w.admin, err = client.New(own.Config, client.Options{Scheme: scheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	return w
}

// patchedFlags returns the flags that a patch in config/kubeadm adds.
func patchedFlags(t *testing.T, folder string) (flags []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "config", "kubeadm", folder, "kube-controller-manager0+json.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var patch []struct{ Op, Path, Value string }
	if err := yaml.UnmarshalStrict(data, &patch); err != nil {
		t.Fatal(err)
	}
	for _, each := range patch {
		if each.Op != "add" || each.Path != "/spec/containers/0/command/-" {
			t.Fatalf("patch: %+v", patch)
		}
		flags = append(flags, each.Value)
	}
	if len(flags) == 0 {
		t.Fatal("the patch adds no flag")
	}
	return flags
}

// flagOfPage returns the flag --controllers that the page gives to clusters that kubeadm has not made.
func flagOfPage(t *testing.T) string {
	t.Helper()
	_, section, _ := strings.Cut(howTo(t, migrationPage), "\n### Without kubeadm\n")
	flag := regexp.MustCompile("(?s)```yaml\n *- (--controllers=[^\n]+)\n```").FindStringSubmatch(section)
	if flag == nil {
		t.Fatal("the page has no flag for clusters without kubeadm")
	}
	return flag[1]
}

// startTheirs starts kube-controller-manager with the flag controllers first, and waits until its other controllers work.
func (w *takeover) startTheirs(t *testing.T, controllers string, flags ...string) *cluster.Process {
	t.Helper()
	p := w.start(t, "kcm", os.Getenv("KUBE_CONTROLLER_MANAGER"), append([]string{
		controllers, "--secure-port=0", "--use-service-account-credentials=false",
	}, flags...)...)
	namespace := &corev1.Namespace{}
	namespace.GenerateName = "sign-of-life-"
	if err := w.admin.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "the default ServiceAccount of a new namespace", func(ctx context.Context) error {
		return w.admin.Get(ctx, client.ObjectKey{Namespace: namespace.Name, Name: "default"}, &corev1.ServiceAccount{})
	})
	return p
}

func (w *takeover) startOurs(t *testing.T, flags ...string) *cluster.Process {
	t.Helper()
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	return w.startAs(t, w.managerConfig(t), "ours", path, append([]string{"--metrics-bind-address=0", "--health-probe-bind-address=0"}, flags...)...)
}

// startDryRun starts ours as a dry run, and waits until it is ready.
func (w *takeover) startDryRun(t *testing.T) *kit.Process {
	t.Helper()
	p := &kit.Process{Probes: kit.FreeAddress(t), Metrics: kit.FreeAddress(t)}
	p.Process = w.startOurs(t, append(w.caFlags(t), "--dry-run=*", "--metrics-bind-address="+p.Metrics, "--health-probe-bind-address="+p.Probes)...)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	return p
}

// caFlags name files with the CA of the control plane.
func (w *takeover) caFlags(t *testing.T) []string {
	t.Helper()
	return []string{
		"--cluster-signing-cert-file=" + w.caFile(t, "ca.crt", w.CA.CertPEM), "--cluster-signing-key-file=" + w.caFile(t, "ca.key", w.CA.KeyPEM),
	}
}

func (w *takeover) caFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(w.Dir, name)
	kit.Write(t, path, data)
	return path
}

// managerConfig is the function of that name for w.
func (w *takeover) managerConfig(t *testing.T) *rest.Config {
	t.Helper()
	return kit.ManagerConfigOn(t, w.Config, w.admin, false)
}

func (w *takeover) start(t *testing.T, name, binary string, args ...string) *cluster.Process {
	t.Helper()
	return w.startAs(t, w.Config, name, binary, args...)
}

func (w *takeover) startAs(t *testing.T, cfg *rest.Config, name, binary string, args ...string) *cluster.Process {
	t.Helper()
	kubeconfig, err := w.WriteKubeconfig(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.StartProcess(name, binary, append([]string{"--kubeconfig", kubeconfig, "--leader-elect=false"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.Ended() == nil {
			p.Kill()
		}
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, p.Tail(30))
		}
	})
	return p
}

// end stops kube-controller-manager, which does not exit cleanly. It fails if the process had ended before.
func end(t *testing.T, theirs *cluster.Process) {
	t.Helper()
	if theirs.Ended() != nil {
		t.Fatalf("it has ended by itself:\n%s", theirs.Tail(30))
	}
	theirs.Kill()
}

func (w *takeover) create(t *testing.T, node string) *kit.Request {
	t.Helper()
	obj := kit.NodeRequest(t, node)
	if err := w.admin.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

func (w *takeover) issued(t *testing.T, node string) *kit.Request {
	t.Helper()
	obj := w.create(t, node)
	w.reaches(t, obj, csr.Issued)
	return obj
}

func (w *takeover) reaches(t *testing.T, obj *kit.Request, state csr.State) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("request %s becomes %s", obj.Name, state), func(ctx context.Context) error {
		if err := w.admin.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		if got := csr.StateOf(obj); got != state {
			return fmt.Errorf("it is %s: %+v", got, obj.Status.Conditions)
		}
		return nil
	})
}

// issuedBy checks the field managers in managedFields, as the guide tells people to do.
func (w *takeover) issuedBy(t *testing.T, node, approver, signer string) {
	t.Helper()
	got := map[string]string{}
	for _, entry := range w.issued(t, node).ManagedFields {
		got[entry.Subresource] = entry.Manager
	}
	if got["approval"] != approver || got["status"] != signer {
		t.Errorf("approved and signed by %v, want %s and %s", got, approver, signer)
	}
}

// staysPending waits two seconds, and checks that no program has handled obj.
func (w *takeover) staysPending(t *testing.T, obj *kit.Request) {
	t.Helper()
	until := time.Now().Add(2 * time.Second)
	for time.Now().Before(until) {
		if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			t.Fatal(err)
		}
		if got := csr.StateOf(obj); got != csr.Pending {
			t.Fatalf("request %s is %s, though nobody should be there: %+v", obj.Name, got, obj.Status.Conditions)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
