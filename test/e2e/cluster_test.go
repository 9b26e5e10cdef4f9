//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	testcluster "github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const (
	// firstNode is the control plane's own node, on which everything runs before another node joins.
	firstNode = "control-plane"
	// bootstrapToken is the token of manifests/bootstrap, and bootstrapUser its user.
	bootstrapToken, bootstrapUser = "07401b.f395accd246ae52d", "system:bootstrap:07401b"
	// signingSecret is the name of the signing Secret in namespace.
	namespace, signingSecret = kit.SystemNamespace, "csr-signer"
)

// cluster is a control plane with the nodes that joined it: etcd, kube-apiserver, kube-controller-manager without its CSR
// loops, and kube-scheduler.
type cluster struct {
	dir     string
	address string // of the API server
	// ca is the cluster's CA, which also signs the API server's certificate. next is another CA that the API server
	// trusts for clients. retired is the CA that kubelets' servers have left.
	ca, next  *csrenv.CA
	retired   keypair.Pair
	kubeletCA string       // the file with which the API server verifies kubelets
	config    *rest.Config // of an administrator
	admin     client.WithWatch
	processes []*process
	machines  map[string]*machine
}

// newCluster adds the control plane's addresses to these namespaces, and a bridge for the machines' veth pairs. Everything
// is removed at the end of t. If t has failed, its state is logged first.
func newCluster(t *testing.T, address string) *cluster {
	dir := os.Getenv(dirVariable)
	c := &cluster{dir: dir, address: address, kubeletCA: filepath.Join(dir, "pki/client-ca.crt"), machines: map[string]*machine{}}
	kit.AtEnd(t, func() error {
		if t.Failed() {
			c.describe(t)
		}
		var errs []error
		for _, m := range c.machines {
			errs = append(errs, m.stop())
		}
		for _, p := range slices.Backward(c.processes) {
			errs = append(errs, p.end(syscall.SIGKILL))
		}
		_, err := run(exec.Command("sh", "-c", `ip link delete machines && cd "$1" && rm -rf etcd pki pki-* audit.log`, "sh", dir))
		return errors.Join(append(errs, err)...)
	})
	for _, line := range []string{
		"link set lo up", "address replace " + serviceAddress + "/32 dev lo", "link add machines address " + bridgeMAC + " type bridge",
		"address add " + controlPlaneAddress + "/24 dev machines", "link set machines up",
	} {
		mustRun(t, exec.Command("ip", strings.Fields(line)...))
	}
	return c
}

// startCluster starts a control plane and its own node. The node joins as with kubeadm: with a certificate that the
// CA's key signed directly.
func startCluster(t *testing.T) *cluster {
	c := newCluster(t, controlPlaneAddress)
	c.certificates(t)
	c.start(t, "etcd", "etcd", etcdArgs(c.path("etcd"))...)
	c.startAPIServer(t)
	c.startControllers(t, c.path("pki"))
	c.machine(t, firstNode).firstKubelet(t, c.firstConfig(t), kubeletOptions{KeepCertificate: true})
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	c.nodeReady(t, firstNode)
	return c
}

// startControllers starts kube-controller-manager and kube-scheduler, with the key for ServiceAccounts in pki.
func (c *cluster) startControllers(t *testing.T, pki string, args ...string) {
	c.start(t, "kube-controller-manager", "kube-controller-manager", append([]string{
		"--controllers=*,-csrapproving,-csrsigning,-csrcleaner", "--kubeconfig=" + c.path("kube-controller-manager.kubeconfig"),
		"--leader-elect=false", "--secure-port=0", "--use-service-account-credentials",
		"--service-account-private-key-file=" + filepath.Join(pki, "sa.key"), "--root-ca-file=" + filepath.Join(pki, "ca.crt"),
	}, args...)...)
	c.start(t, "kube-scheduler", "kube-scheduler",
		"--kubeconfig="+c.path("kube-scheduler.kubeconfig"), "--leader-elect=false", "--secure-port=0")
}

// firstConfig returns the configuration of the control plane's own kubelet.
func (c *cluster) firstConfig(t *testing.T) *rest.Config {
	return clientConfig(c.server(), c.ca, clientPair(t, c.ca, "system:node:"+firstNode, "system:nodes"))
}

func newAdmin(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	return kit.Must(client.NewWithWatch(config, client.Options{Scheme: kit.Scheme}))(t)
}

// get reads an object, of which the name and the namespace are set.
func (c *cluster) get(t *testing.T, obj client.Object) {
	t.Helper()
	kit.NoError(t, c.admin.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return kit.Must(c.tryKubectl(args...))(t)
}

func (c *cluster) tryKubectl(args ...string) (string, error) {
	return run(exec.Command(binary("kubectl"), append([]string{"--kubeconfig", c.path("admin.kubeconfig")}, args...)...))
}

func (c *cluster) describe(t *testing.T) {
	for _, line := range []string{
		"get nodes -o wide", "get pods -A -o wide", "get csr", "get signingauthorities -o yaml", "get leases -A",
		"get events -A --sort-by=.metadata.creationTimestamp",
	} {
		output, err := c.tryKubectl(strings.Fields(line)...)
		t.Logf("kubectl %s\n%s", line, output)
		if err != nil { // the other commands would fail too
			return
		}
	}
}

// install applies an overlay and then creates the signing Secret, as in README.
func (c *cluster) install(t *testing.T, overlay string, ca *csrenv.CA, deployments ...string) {
	c.kubectl(t, "apply", "-k", overlay)
	kit.NoError(t, c.admin.Create(t.Context(), kit.SigningSecret(ca.CertPEM, ca.KeyPEM)))
	c.deploymentsAvailable(t, deployments...)
}

func (c *cluster) deploymentsAvailable(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		c.kubectl(t, "-n", namespace, "rollout", "status", "deployment/"+name, "--timeout=60s")
	}
}

func (c *cluster) nodeReady(t *testing.T, name string) {
	t.Helper()
	c.nodeWithin(t, name, time.Minute)
}

func (c *cluster) nodeWithin(t *testing.T, name string, timeout time.Duration) {
	t.Helper()
	until(t, timeout, "Node "+name+" is Ready", func(ctx context.Context) (bool, error) {
		node := &corev1.Node{}
		err := c.admin.Get(ctx, client.ObjectKey{Name: name}, node)
		return ready(node).Status == corev1.ConditionTrue, err
	})
}

func ready(node *corev1.Node) corev1.NodeCondition {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

// runPod creates a pod for the node, and waits until it is ready. Its name is on- and that of the node.
func (c *cluster) runPod(t *testing.T, node string) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "on-" + node},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			Containers:   []corev1.Container{{Name: "pause", Image: pauseImage, ImagePullPolicy: corev1.PullNever}},
		},
	}
	kit.NoError(t, c.admin.Create(t.Context(), pod))
	c.podReady(t, pod.Namespace, pod.Name)
}

func (c *cluster) podReady(t *testing.T, in, name string) {
	t.Helper()
	until(t, time.Minute, "pod "+name+" is ready", func(context.Context) (bool, error) { // kubectl does not wait for a pod that does not exist yet
		_, err := c.tryKubectl("-n", in, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=10s")
		return err == nil, err
	})
}

// wantLog reads the log of the pod of runPod through the API server.
func (c *cluster) wantLog(t *testing.T, node string) {
	t.Helper()
	until(t, 20*time.Second, "the log of the pod on "+node+" can be read", func(context.Context) (bool, error) {
		log, err := c.tryKubectl("logs", "on-"+node)
		return log == "running\n", err
	})
}

func (c *cluster) objects(t *testing.T) sets.Set[string] {
	t.Helper()
	return kit.Must(testcluster.Objects(t.Context(), c.config))(t)
}

// others are kinds of which nodes, tests and the control plane also create objects. Names show which objects are
// ours. Events about requests last for an hour.
var others = []string{
	"certificatesigningrequests.", "events.", "nodes.", "csinodes.", "leases.", "pods.", "serviceaccounts.", "configmaps.", "clustertrustbundles.",
}

// ours are parts of the names of our objects.
var ours = []string{"csr-controller-manager", "csr-approver", "csr-signer", "csr-cleaner", "csr-metrics", "csr-leader", "csr-ca"}

// uninstall wants only objects that existed before the install after kubectl delete.
func (c *cluster) uninstall(t *testing.T, overlay string, before sets.Set[string]) {
	c.kubectl(t, "delete", "-k", overlay, "--timeout=60s")
	for one := range c.objects(t).Difference(before) {
		name := one[strings.Index(one, " "):]
		mine := slices.ContainsFunc(ours, func(part string) bool { return strings.Contains(name, part) })
		other := slices.ContainsFunc(others, func(kind string) bool { return strings.HasPrefix(one, kind) })
		kit.Check(t, other && !mine, "left behind: %s", one)
	}
}

// The images that only we build, by their names in containerd.
const (
	pauseImage     = "docker.io/e2e/pause:local"
	etcdImage      = "docker.io/e2e/etcd:local"
	apiServerImage = "docker.io/e2e/kube-apiserver:local"
)

// root is the module's root. Tests run in the folder of their package.
const root = "../.."

func binary(name string) string {
	switch name {
	case "etcd", "kube-apiserver", "kubectl":
		if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
			return filepath.Join(assets, name)
		}
	}
	return filepath.Join(os.Getenv("CONTROLPLANE"), name)
}

// managerImage returns the archive that make image writes, or E2E_IMAGE.
func managerImage() string {
	if path := os.Getenv("E2E_IMAGE"); path != "" {
		return path
	}
	path, err := filepath.Abs(filepath.Join(root, "bin/image/csr-controller-manager.tar"))
	if err != nil {
		panic(err) // the working directory does not exist
	}
	return path
}

func pauseArchive(dir string) string { return filepath.Join(dir, "images", "pause.tar") }

func buildPause(dir string) error {
	program := filepath.Join(dir, "images", "pause")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if _, err := run(build); err != nil {
		return err
	}
	return writeArchive(pauseArchive(dir), pauseImage, program)
}

// writeArchive writes an image with one static program, as docker save does.
func writeArchive(path, name, program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	base := filepath.Base(program)
	layer := tarOf(map[string][]byte{base: data})
	return os.WriteFile(path, tarOf(map[string][]byte{
		"layer.tar": layer,
		"config.json": fmt.Appendf(nil, `{"architecture": %q, "os": "linux", "config": {"Entrypoint": ["/%s"], "Env": ["PATH=/"]},
  "rootfs": {"type": "layers", "diff_ids": ["sha256:%x"]}}`, runtime.GOARCH, base, sha256.Sum256(layer)),
		"manifest.json": fmt.Appendf(nil, `[{"Config": "config.json", "RepoTags": [%q], "Layers": ["layer.tar"]}]`, name),
	}), 0o600)
}

func tarOf(files map[string][]byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, data := range files {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}) // a buffer takes everything
		_, _ = w.Write(data)
	}
	_ = w.Close()
	return out.Bytes()
}
