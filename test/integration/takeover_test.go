package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// kubeadmControllers is what kubeadm gives kube-controller-manager.
const kubeadmControllers = "--controllers=*,bootstrapsigner,tokencleaner"

// TestTakeover goes through docs/how-to/migrate-from-kcm.md with the real kube-controller-manager, with all of its controllers:
// side by side, taken over, and back.
func TestTakeover(t *testing.T) {
	parallel(t)
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
	const theirs, ours = "kube-controller-manager", "csr-controller-manager"

	before := w.startTheirs(t)
	w.issuedBy(t, "before", theirs, theirs)

	// Beside each other, with the same CA: either one is fine, and neither stumbles.
	beside := w.startOurs(t)
	for i := range 20 {
		w.issued(t, fmt.Sprintf("beside-%d", i))
	}
	end(t, before)

	after := w.startTheirs(t, patchedFlag(t))
	w.issuedBy(t, "taken-over", ours, ours)

	// Back: ours goes first or last, it does not matter.
	if err := beside.Stop(); err != nil {
		t.Fatal(err)
	}
	pending := w.create(t, "nobody")
	w.staysPending(t, pending)
	end(t, after)
	w.startTheirs(t)
	w.reaches(t, pending, csr.Issued)
}

type takeover struct {
	*cluster.Cluster
	admin client.Client
}

// patchedFlag is the one that config/kubeadm's patch adds.
func patchedFlag(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "config", "kubeadm", "kube-controller-manager0+json.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var patch []struct{ Op, Path, Value string }
	if err := yaml.UnmarshalStrict(data, &patch); err != nil {
		t.Fatal(err)
	}
	if len(patch) != 1 || patch[0].Op != "add" || patch[0].Path != "/spec/containers/0/command/-" {
		t.Fatalf("patch: %+v", patch)
	}
	return patch[0].Value
}

// startTheirs starts kube-controller-manager as kubeadm does, and waits until its controllers work.
func (w *takeover) startTheirs(t *testing.T, flags ...string) *cluster.Process {
	t.Helper()
	p := w.start(t, "kcm", os.Getenv("KUBE_CONTROLLER_MANAGER"), append([]string{
		kubeadmControllers, "--secure-port=0", "--use-service-account-credentials=false",
		"--cluster-signing-cert-file", w.caFile(t, "ca.crt", w.CA.CertPEM), "--cluster-signing-key-file", w.caFile(t, "ca.key", w.CA.KeyPEM),
	}, flags...)...)
	namespace := &corev1.Namespace{}
	namespace.GenerateName = "sign-of-life-"
	if err := w.admin.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the default ServiceAccount of a new namespace", func(ctx context.Context) error {
		return w.admin.Get(ctx, client.ObjectKey{Namespace: namespace.Name, Name: "default"}, &corev1.ServiceAccount{})
	})
	return p
}

func (w *takeover) startOurs(t *testing.T) *cluster.Process {
	t.Helper()
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	return w.start(t, "ours", path, "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--cluster-signing-cert-file", w.caFile(t, "ca.crt", w.CA.CertPEM), "--cluster-signing-key-file", w.caFile(t, "ca.key", w.CA.KeyPEM))
}

func (w *takeover) caFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(w.Dir, name)
	write(t, path, data)
	return path
}

func (w *takeover) start(t *testing.T, name, binary string, args ...string) *cluster.Process {
	t.Helper()
	kubeconfig, err := w.WriteKubeconfig(name, w.Config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.StartProcess(name, binary, append(args, "--kubeconfig", kubeconfig, "--leader-elect=false")...)
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

// end ends kube-controller-manager, which does not do so cleanly, and fails when it had ended before.
func end(t *testing.T, theirs *cluster.Process) {
	t.Helper()
	if theirs.Ended() != nil {
		t.Fatalf("it has ended by itself:\n%s", theirs.Tail(30))
	}
	theirs.Kill()
}

func (w *takeover) create(t *testing.T, node string) *request {
	t.Helper()
	obj := nodeRequest(t, node)
	if err := w.admin.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

func (w *takeover) issued(t *testing.T, node string) *request {
	t.Helper()
	obj := w.create(t, node)
	w.reaches(t, obj, csr.Issued)
	return obj
}

func (w *takeover) reaches(t *testing.T, obj *request, state csr.State) {
	t.Helper()
	eventually(t, fmt.Sprintf("request %s becomes %s", obj.Name, state), func(ctx context.Context) error {
		if err := w.admin.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		if got := csr.StateOf(obj); got != state {
			return fmt.Errorf("it is %s: %+v", got, obj.Status.Conditions)
		}
		return nil
	})
}

// issuedBy checks who is noted in managedFields, which is how the guide tells people to see it.
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

// staysPending gives whoever is there two seconds.
func (w *takeover) staysPending(t *testing.T, obj *request) {
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
