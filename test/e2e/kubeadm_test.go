//go:build e2e

package e2e

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

// TestKubeadm makes a cluster with kubeadm init, moves it to the manager by the steps of docs/how-to/migrate-from-kcm.md,
// and lets a node join with kubeadm join. The programs of the control plane run as the static Pods that kubeadm writes.
//
// kubeadm starts a kubelet through systemd or OpenRC, which a machine of the tests does not have. So the test starts the
// kubelet when kubeadm says that it does, with the flags of kubeadm's drop-in for systemd. Preflight checks look at the
// whole computer, and the add-ons need images of a registry. Both are left out.
func TestKubeadm(t *testing.T) {
	if _, err := os.Stat(binary("kubeadm")); err != nil {
		t.Fatalf("%v: make nightly PARTS=e2e-nightly builds it", err)
	}
	ctrllog.SetLogger(logr.Discard())
	plane := &controlPlane{dir: os.Getenv(dirVariable), address: "10.99.0.2"} // the address of the first machine
	if err := plane.addresses(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(plane.path("audit.log")) }) // a link
	plane.config = &rest.Config{Host: "https://" + plane.address + ":6443"}
	c := newCluster(t, plane)
	var m, worker *machine
	step(t, "kubeadm init", func(t *testing.T) { m = c.kubeadmInit(t) })
	step(t, "kube-controller-manager without its certificate controllers", func(t *testing.T) { c.switchOff(t, m) })
	var join *process
	step(t, "kubeadm join, while no program approves", func(t *testing.T) { worker, join = c.kubeadmJoin(t) })
	step(t, "the manager is installed", func(t *testing.T) {
		c.kubectl(t, "apply", "-f", filepath.Join(root, "config/rbac/namespace.yaml"))
		c.untouched(t, worker.name)
		c.kubectl(t, "-n", namespace, "create", "secret", "tls", signingSecret, "--cert", m.file(pkiDir+"/ca.crt"), "--key", m.file(pkiDir+"/ca.key"))
		c.kubectl(t, "apply", "-k", "manifests/kubeadm")
		c.deploymentsAvailable(t, "csr-controller-manager")
	})
	step(t, "the node has joined", func(t *testing.T) {
		c.ended(t, join, "This node has joined the cluster")
		c.wantJoined(t, worker)
		file, cert := worker.current(t)
		c.wantIdentity(t, worker, file, cert)
		if ok, err := signedBy(cert, c.ca); err != nil || !ok {
			t.Errorf("the certificate of %s is not from kubeadm's CA: %v", worker.name, err)
		}
	})
}

// kubeadmConfig is for init. %[1]s is the token, %[2]s the address, %[3]s the version, %[4]s the configuration of all
// kubelets, and %[5]s that of the first.
const kubeadmConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens:
- token: %[1]s
localAPIEndpoint:
  advertiseAddress: %[2]s
nodeRegistration: %[5]s
skipPhases: [preflight, addon]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: %[3]s
proxy: {disabled: true}
dns: {disabled: true}
apiServer:
  extraArgs:
  - {name: audit-policy-file, value: /etc/kubernetes/audit/policy.yaml}
  - {name: audit-log-path, value: /etc/kubernetes/audit/audit.log}
  extraVolumes:
  - {name: audit, hostPath: /etc/kubernetes/audit, mountPath: /etc/kubernetes/audit, pathType: Directory}
---
%[4]s`

// nodeRegistration is the configuration of one kubelet. %[1]s is the address, and %[2]s the cgroup.
const nodeRegistration = `{criSocket: "unix:///run/containerd/containerd.sock", kubeletExtraArgs: [{name: node-ip, value: %[1]s}, {name: cgroup-root, value: /%[2]s}]}`

// joinConfig is for join. %[1]s is the token, %[2]s the API server, %[3]x the hash of the CA's public key, and %[4]s the
// configuration of the kubelet.
const joinConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken:
    token: %[1]s
    apiServerEndpoint: %[2]s
    caCertHashes: ["sha256:%[3]x"]
nodeRegistration: %[4]s
skipPhases: [preflight]
`

// kubeadmInit makes a cluster on the first machine. The phases for certificates and kubeconfigs run alone before, as for
// a control plane that is made by hand.
func (c *cluster) kubeadmInit(t *testing.T) *machine {
	t.Helper()
	version := strings.TrimSpace(c.mustOutput(t, exec.Command(binary("kubeadm"), "version", "-o", "short")))
	m := c.machine(t, "first", c.kubeadmImages(t, version)...)
	policy, err := os.ReadFile("manifests/audit-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Appendf(nil, kubeadmConfig, bootstrapToken, m.address, version,
		fmt.Sprintf(kubeletConfig, true, false, m.cgroup()), fmt.Sprintf(nodeRegistration, m.address, m.cgroup()))
	if err := errors.Join(m.write("/etc/kubernetes/audit/policy.yaml", policy), m.write("/run/init.yaml", config)); err != nil {
		t.Fatal(err)
	}
	for _, phase := range []string{"certs", "kubeconfig"} {
		c.mustOutput(t, m.kubeadm("init", "phase", phase, "all", "--config=/run/init.yaml"))
	}
	c.readKubeadmCA(t, m)
	initialize := c.startKubeadm(t, m, "init", "--config=/run/init.yaml")
	c.ended(t, initialize, "Your Kubernetes control-plane has initialized successfully!")
	c.connect(t, m)
	c.nodeReady(t, m.name)
	return m
}

// kubeadmImages writes the programs of the control plane as the images that kubeadm names, and returns the archives.
func (c *cluster) kubeadmImages(t *testing.T, version string) []string {
	t.Helper()
	var archives []string
	images := c.mustOutput(t, exec.Command(binary("kubeadm"), "config", "images", "list", "--kubernetes-version="+version))
	for image := range strings.FieldsSeq(images) {
		name, _, _ := strings.Cut(path.Base(image), ":")
		if !slices.Contains([]string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}, name) {
			continue // of an add-on, or the sandbox image, which containerd has by another name
		}
		archive := c.path(filepath.Join("images", "kubeadm-"+name+".tar"))
		if err := writeArchive(archive, image, binary(name)); err != nil {
			t.Fatal(err)
		}
		archives = append(archives, archive)
	}
	if len(archives) != 4 {
		t.Fatalf("kubeadm names other images: %s", images)
	}
	return archives
}

// readKubeadmCA reads the CA that kubeadm has made, and checks that it is what kubeadm makes by default.
func (c *cluster) readKubeadmCA(t *testing.T, m *machine) {
	t.Helper()
	certificate, err := os.ReadFile(m.file(pkiDir + "/ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(m.file(pkiDir + "/ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	c.ca = &csrenv.CA{CertPEM: certificate, KeyPEM: key}
	if public, ok := c.caCertificate(t).PublicKey.(*rsa.PublicKey); !ok || public.N.BitLen() != 2048 {
		t.Errorf("the key of kubeadm's CA is a %T, want RSA with 2048 bits", c.caCertificate(t).PublicKey)
	}
}

func (c *cluster) caCertificate(t *testing.T) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(c.ca.CertPEM, c.ca.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// connect makes the clients from kubeadm's kubeconfig for administrators, and the audit log readable.
func (c *cluster) connect(t *testing.T, m *machine) {
	t.Helper()
	data, err := os.ReadFile(m.file("/etc/kubernetes/admin.conf"))
	if err != nil {
		t.Fatal(err)
	}
	log := c.path("audit.log")
	_ = os.Remove(log) // of another test's control plane
	if err := errors.Join(os.WriteFile(c.path("admin.kubeconfig"), data, 0o600), os.Symlink(m.file("/etc/kubernetes/audit/audit.log"), log)); err != nil {
		t.Fatal(err)
	}
	if c.config, err = clientcmd.RESTConfigFromKubeConfig(data); err != nil {
		t.Fatal(err)
	}
	c.config.QPS, c.config.WarningHandler = -1, rest.NoWarnings{}
	if c.admin, err = newAdmin(c.config); err != nil {
		t.Fatal(err)
	}
}

// kubeadm returns a command that runs kubeadm on the machine.
func (m *machine) kubeadm(args ...string) *exec.Cmd {
	return m.command(append([]string{binary("kubeadm")}, args...)...)
}

// startKubeadm starts kubeadm, and the kubelet at the moment at which kubeadm expects it to start.
func (c *cluster) startKubeadm(t *testing.T, m *machine, args ...string) *process {
	t.Helper()
	p, err := startProcess(c.dir, m.name+"-kubeadm", m.kubeadm(args...))
	if err != nil {
		t.Fatal(err)
	}
	c.until(t, time.Minute, "kubeadm starts the kubelet", func(context.Context) (bool, error) {
		output, err := c.output(p)
		if err == nil && p.ended() != nil {
			t.Fatalf("kubeadm has ended:\n%s", output)
		}
		return strings.Contains(output, "Starting the kubelet"), err
	})
	// As in kubeadm's 10-kubeadm.conf.
	const unit = `. /var/lib/kubelet/kubeadm-flags.env; exec "$@" $KUBELET_KUBEADM_ARGS`
	m.kubelet, err = startProcess(m.dir, m.name+"-kubelet", m.command("sh", "-ec", unit, "kubelet", binary("kubelet"),
		"--bootstrap-kubeconfig="+bootstrapPath, "--kubeconfig="+kubeconfigPath, "--config=/var/lib/kubelet/config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// output returns what a process has printed.
func (c *cluster) output(p *process) (string, error) {
	data, err := os.ReadFile(filepath.Join(logDir(c.dir), p.name+".log"))
	return string(data), err
}

// ended waits until kubeadm ends without an error and has printed want.
func (c *cluster) ended(t *testing.T, p *process, want string) {
	t.Helper()
	c.until(t, 3*time.Minute, "kubeadm ends", func(context.Context) (bool, error) { return p.ended() != nil, nil })
	output, err := c.output(p)
	if err != nil || !p.ended().Success() || !strings.Contains(output, want) {
		t.Fatalf("%s: %v %v\n%s", p.name, p.ended(), err, output)
	}
}

func (c *cluster) mustOutput(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command.Args, err, output)
	}
	return string(output)
}

// switchOff runs the commands of the page that switch the certificate controllers of kube-controller-manager off, on
// the node of the control plane, in a folder like a clone of the repository.
func (c *cluster) switchOff(t *testing.T, m *machine) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/how-to/migrate-from-kcm.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sh\n(   install -D .*?)```").FindStringSubmatch(string(page))
	if block == nil {
		t.Fatal("the page has no commands that install the patch")
	}
	clone, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("export KUBECONFIG=/etc/kubernetes/admin.conf PATH=%s:%s:$PATH\n", filepath.Dir(binary("kubeadm")), filepath.Dir(binary("kubectl"))) +
		"mkdir /run/clone && cd /run/clone && ln -s " + clone + "/config config\n" + regexp.MustCompile("(?m)^   ").ReplaceAllString(block[1], "")
	if _, err := run(m.command("bash", "-ec", script)); err != nil {
		t.Fatal(err)
	}
	name := "kube-controller-manager-" + m.name
	c.until(t, time.Minute, "kube-controller-manager has the flags of the patch", func(ctx context.Context) (bool, error) {
		pod := &corev1.Pod{}
		err := c.admin.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: name}, pod)
		if err != nil {
			return false, err
		}
		command := pod.Spec.Containers[0].Command
		for _, flag := range []string{"--controllers=*,bootstrapsigner,tokencleaner", "--controllers=-csrapproving,-csrsigning,-csrcleaner"} {
			if !slices.Contains(command, flag) {
				return false, fmt.Errorf("no %s in %q", flag, command)
			}
		}
		return true, nil
	})
	c.podReady(t, metav1.NamespaceSystem, name)
}

// kubeadmJoin starts kubeadm join and a kubelet on another machine, and returns once the node has requested its
// certificate. kubeadm verifies the cluster by the signature of the bootstrapsigner and by the hash of the CA.
func (c *cluster) kubeadmJoin(t *testing.T) (*machine, *process) {
	t.Helper()
	m := c.machine(t, "joined")
	hash := sha256.Sum256(c.caCertificate(t).RawSubjectPublicKeyInfo)
	config := fmt.Appendf(nil, joinConfig, bootstrapToken, strings.TrimPrefix(c.config.Host, "https://"), hash, fmt.Sprintf(nodeRegistration, m.address, m.cgroup()))
	if err := m.write("/run/join.yaml", config); err != nil {
		t.Fatal(err)
	}
	join := c.startKubeadm(t, m, "join", "--config=/run/join.yaml")
	c.until(t, time.Minute, "the node has requested its certificate", func(ctx context.Context) (bool, error) {
		requests, err := c.requestsOf(ctx, m.name)
		return len(requests) > 0, err
	})
	return m, join
}

// untouched checks that kube-controller-manager works, and that no program has approved or signed the requests of node.
func (c *cluster) untouched(t *testing.T, node string) {
	t.Helper()
	c.until(t, time.Minute, "the namespace has its default ServiceAccount", func(ctx context.Context) (bool, error) {
		err := c.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{})
		return err == nil, err
	})
	requests, err := c.requestsOf(t.Context(), node)
	if err != nil || len(requests) == 0 {
		t.Fatalf("no request of %s: %v", node, err)
	}
	for _, obj := range requests {
		if len(obj.Status.Conditions)+len(obj.Status.Certificate) > 0 {
			t.Errorf("request %s was handled before the manager was installed: %v", obj.Name, obj.Status.Conditions)
		}
	}
}
