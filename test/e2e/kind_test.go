//go:build e2e && kind

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

// kindConfig mounts the logs of the pods of both nodes in the folders %q.
const kindConfig = `kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
- role: control-plane
  extraMounts: [{hostPath: %q, containerPath: /var/log/pods}]
- role: worker
  extraMounts: [{hostPath: %q, containerPath: /var/log/pods}]
`

// TestKind runs steps 1, 2, 4, 5, 6 and 9 on a kind cluster: the manager takes over kubeadm's control plane. Steps 3,
// 7, 8 and 10 start kubelets in ways that kind's images do not support.
//
// This test was written without access to kind and docker, and has not been run.
func TestKind(t *testing.T) {
	name := os.Getenv(kindVariable)
	if name == "" {
		t.Fatalf("%s names no kind cluster to make: see docs/how-to/run-end-to-end-tests.md#kind", kindVariable)
	}
	c := startKind(t, name)
	c.takeOver(t)
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	before := c.objects(t)
	c.install(t, "manifests/kind", c.ca)
	c.deploymentsAvailable(t, "csr-controller-manager")
	worker := c.machines[name+"-worker"]
	step(t, "1 a kubelet joins through the Deployment", func(t *testing.T) {
		c.joinAgain(t, worker)
		c.wantJoined(t, worker)
	})
	step(t, "2 the client certificate rotates without an outage", func(t *testing.T) { c.testRotation(t, worker) })
	step(t, "4 another CA signs without a restart", func(t *testing.T) { c.testNewCA(t) })
	step(t, "4 the kubelet's next certificate is the other CA's", func(t *testing.T) { c.testNewCAReachesKubelet(t, worker) })
	step(t, "5 no request is lost with a deleted leader", func(t *testing.T) { c.testLeaderDeleted(t) })
	step(t, "5 no request is lost with a killed leader", func(t *testing.T) { c.testLeaderKilled(t) })
	step(t, "9 uninstalled", func(t *testing.T) { c.testUninstall(t, "manifests/kind", before) })
	step(t, "6 three identities", func(t *testing.T) { c.testSplit(t) })
	step(t, "9 uninstalled again", func(t *testing.T) { c.testUninstall(t, "manifests/split", before) })
}

// startKind creates a cluster with two nodes, and loads the images on both.
func startKind(t *testing.T, name string) *cluster {
	t.Helper()
	c := &cluster{kind: name, machines: map[string]*machine{}, controlPlane: &controlPlane{dir: t.TempDir()}}
	nodes := []string{name + "-control-plane", name + "-worker"}
	for _, node := range nodes {
		c.machines[node] = &machine{name: node, dir: c.dir, enter: []string{"docker", "exec", node}}
		if err := os.MkdirAll(podLogDir(c.dir, node), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := c.path("kind.yaml")
	text := fmt.Appendf(nil, kindConfig, podLogDir(c.dir, nodes[0]), podLogDir(c.dir, nodes[1]))
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := buildImages(c.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.describe(t)
			printTails(os.Stdout, c.dir)
		}
		for _, m := range c.machines { // its files belong to root
			_ = m.command("sh", "-c", "rm -rf /var/log/pods/*").Run()
		}
		mustRun(t, "kind", "delete", "cluster", "--name", name)
	})
	mustRun(t, "kind", "create", "cluster", "--name", name, "--config", config, "--kubeconfig", c.path("admin.kubeconfig"), "--wait", "3m")
	for _, archive := range []string{pauseArchive(c.dir), managerImage()} {
		mustRun(t, "kind", "load", "image-archive", archive, "--name", name)
	}
	var err error
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.path("admin.kubeconfig")); err != nil {
		t.Fatal(err)
	}
	c.config.QPS, c.config.WarningHandler = -1, rest.NoWarnings{}
	if c.admin, err = client.NewWithWatch(c.config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	c.stored = c.watchStored(t)
	return c
}

// takeOver disables the CSR loops of kube-controller-manager, reads its CA, and adds another CA to the API server's
// trust.
func (c *cluster) takeOver(t *testing.T) {
	t.Helper()
	plane := c.machines[c.kind+"-control-plane"]
	script := func(line string) string {
		output, err := run(plane.command("sh", "-c", line))
		if err != nil {
			t.Fatal(err)
		}
		return output
	}
	const manifest = "/etc/kubernetes/manifests/kube-controller-manager.yaml"
	script("sed -i 's/--controllers=.*/&,-csrapproving,-csrsigning,-csrcleaner/' " + manifest)
	c.ca = &csrenv.CA{
		CertPEM: []byte(script("cat /etc/kubernetes/pki/ca.crt")), KeyPEM: []byte(script("cat /etc/kubernetes/pki/ca.key")),
	}
	var err error
	if c.next, err = csrenv.NewCA(); err != nil {
		t.Fatal(err)
	}
	// kubeadm's --client-ca-file. The API server reads it once a minute.
	script(fmt.Sprintf("cat >>/etc/kubernetes/pki/ca.crt <<'END'\n%sEND", c.next.CertPEM))
	c.until(t, 2*time.Minute, "kube-controller-manager runs without its CSR loops", func(ctx context.Context) (bool, error) {
		pod := &corev1.Pod{}
		key := client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kube-controller-manager-" + plane.name}
		err := c.admin.Get(ctx, key, pod)
		return err == nil && strings.Contains(fmt.Sprint(pod.Spec.Containers), "-csrsigning") && pod.Status.Phase == corev1.PodRunning, err
	})
	c.until(t, 3*time.Minute, "the API server publishes both CAs", func(ctx context.Context) (bool, error) {
		published := &corev1.ConfigMap{}
		key := client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication"}
		err := c.admin.Get(ctx, key, published)
		return err == nil && strings.Contains(published.Data["client-ca-file"], strings.TrimSpace(string(c.next.CertPEM))), err
	})
}

// joinAgain removes the node's certificate, and lets it join with only a bootstrap token.
func (c *cluster) joinAgain(t *testing.T, m *machine) {
	t.Helper()
	stop := m.command("sh", "-c", "systemctl stop kubelet && rm -rf "+kubeconfigPath+" /var/lib/kubelet/pki")
	if _, err := run(stop); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "delete", "node", m.name)
	config := c.bootstrapConfig(bootstrapToken)
	config.Host = "https://" + c.kind + "-control-plane:6443" // as the nodes reach it
	write := m.command("sh", "-c", fmt.Sprintf("cat >%s <<'END'\n%sEND", bootstrapPath, kubeconfig(config)))
	if _, err := run(write); err != nil {
		t.Fatal(err)
	}
	if _, err := run(m.command("systemctl", "start", "kubelet")); err != nil {
		t.Fatal(err)
	}
}

func mustRun(t *testing.T, name string, args ...string) {
	t.Helper()
	if _, err := run(exec.Command(name, args...)); err != nil {
		t.Fatal(err)
	}
}
