//go:build nightly

package manager

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestApproverOnly runs the first command of docs/how-to/approver-only.md. It then runs what that has installed, with its
// configuration, its flags and its ServiceAccount, beside the real kube-controller-manager, which signs.
func TestApproverOnly(t *testing.T) {
	kit.Parallel(t)
	w := newTakeover(t)
	w.startTheirs(t, kubeadmControllers, w.caFlags(t)...)
	w.installPage(t)
	w.editKubelet(t)
	approver := w.startInstalled(t)

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}
	if err := w.admin.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	created := node.DeepCopy() // kube-controller-manager writes to the Node, too
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	if err := w.admin.Status().Patch(t.Context(), node, client.MergeFrom(created)); err != nil {
		t.Fatal(err)
	}
	kubelet := rest.CopyConfig(w.Config)
	kubelet.Impersonate = rest.ImpersonationConfig{UserName: csr.NodeUserPrefix + "worker-1", Groups: []string{csr.NodeGroup, "system:authenticated"}}
	foreign := kit.ServingRequest(t, "worker-1", "worker-1", "192.0.2.2")
	own := kit.ServingRequest(t, "worker-1", "worker-1", "192.0.2.1")
	for _, obj := range []*kit.Request{foreign, own} {
		if err := kit.ClientOf(t, kubelet).Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	w.reaches(t, own, csr.Issued)
	by := map[string]string{}
	for _, entry := range own.ManagedFields {
		by[entry.Subresource] = entry.Manager
	}
	if by["approval"] != ours || by["status"] != theirs {
		t.Errorf("approved and signed by %v, want %s and %s", by, ours, theirs)
	}
	w.staysPending(t, foreign)
	approver.Answers(t, approver.Probes, "/readyz", http.StatusOK)
}

// installPage runs the first command of the page with a kubectl, as an administrator in a clone.
func (w *takeover) installPage(t *testing.T) {
	t.Helper()
	command := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(howTo(t, "approver-only.md"))
	if command == nil {
		t.Fatal("the page has no command")
	}
	w.shell(t, command[1])
}

// editKubelet runs the command of the page for the file of a kubelet that has serverTLSBootstrap switched off.
func (w *takeover) editKubelet(t *testing.T) {
	t.Helper()
	command := regexp.MustCompile(`(?m)^ *sed -i '/\^serverTLSBootstrap.*$`).FindString(howTo(t, "approver-only.md"))
	file := filepath.Join(w.Dir, "kubelet.yaml")
	kit.Write(t, file, []byte("serverTLSBootstrap: false\nkind: KubeletConfiguration\n"))
	w.shell(t, strings.ReplaceAll(command, "/var/lib/kubelet/config.yaml", file))
	if data, err := os.ReadFile(file); err != nil || string(data) != "kind: KubeletConfiguration\nserverTLSBootstrap: true\n" {
		t.Errorf("%q writes %q: %v", command, data, err)
	}
}

// shell runs commands with a kubectl, as an administrator in a clone, and returns their output.
func (w *takeover) shell(t *testing.T, commands string) string {
	t.Helper()
	kubeconfig, err := w.WriteKubeconfig("admin", w.Config)
	if err != nil {
		t.Fatal(err)
	}
	script := exec.CommandContext(t.Context(), "bash", "-ec", commands)
	script.Dir = filepath.Join("..", "..")
	script.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+":"+os.Getenv("PATH"))
	out, err := script.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
	return string(out)
}

// startInstalled runs the container of the only Deployment as a process, and waits until it is ready.
func (w *takeover) startInstalled(t *testing.T) *kit.Process {
	t.Helper()
	all := &appsv1.DeploymentList{}
	if err := w.admin.List(t.Context(), all, client.InNamespace(kit.SystemNamespace)); err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != 1 {
		t.Fatalf("%d Deployments", len(all.Items))
	}
	pod := all.Items[0].Spec.Template.Spec
	configuration := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: kit.SystemNamespace, Name: pod.Volumes[0].ConfigMap.Name}
	if err := w.admin.Get(t.Context(), key, configuration); err != nil {
		t.Fatal(err)
	}
	kit.Write(t, filepath.Join(w.Dir, "config.yaml"), []byte(configuration.Data["config.yaml"]))
	args := make([]string, len(pod.Containers[0].Args))
	for i, arg := range pod.Containers[0].Args {
		args[i] = strings.Replace(arg, pod.Containers[0].VolumeMounts[0].MountPath, w.Dir, 1)
	}
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: pod.ServiceAccountName}}
	p := &kit.Process{Probes: kit.FreeAddress(t)}
	p.Process = w.startAs(t, kit.AccountConfig(t, w.Config, w.admin, account), "approver", path, append(args,
		"--leader-elect=true", "--leader-elect-resource-namespace="+kit.SystemNamespace,
		"--metrics-bind-address=0", "--health-probe-bind-address="+p.Probes)...)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	return p
}
