//go:build e2e

package e2e

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	testcluster "github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
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
	c := newCluster(t, firstMachine)
	c.config = &rest.Config{Host: "https://" + c.address + ":6443"}
	var m, worker *machine
	step(t, "kubeadm init", func(t *testing.T) { m = c.kubeadmInit(t) })
	step(t, "kube-controller-manager without its certificate controllers", func(t *testing.T) { c.switchOff(t, m) })
	var join *process
	step(t, "kubeadm join, while no program approves", func(t *testing.T) { worker, join = c.kubeadmJoin(t) })
	step(t, "the manager is installed", func(t *testing.T) {
		c.kubectl(t, "apply", "-f", filepath.Join(root, "config/rbac/namespace.yaml"))
		c.wantUntouched(t, worker.name)
		c.kubectl(t, "-n", namespace, "create", "secret", "tls", signingSecret, "--cert", m.file(pkiDir+"/ca.crt"), "--key", m.file(pkiDir+"/ca.key"))
		c.kubectl(t, "apply", "-k", "manifests/kubeadm")
		c.deploymentsAvailable(t, "csr-controller-manager")
	})
	step(t, "the node has joined", func(t *testing.T) {
		ended(t, join, "This node has joined the cluster")
		c.wantJoined(t, worker)
		file, cert := worker.current(t)
		c.wantIdentity(t, worker, file, cert)
		kit.Check(t, signedBy(t, cert, c.ca), "the certificate of %s is not from kubeadm's CA", worker.name)
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
const nodeRegistration = `{criSocket: "unix:///run/containerd/containerd.sock",
  kubeletExtraArgs: [{name: node-ip, value: %[1]s}, {name: cgroup-root, value: /%[2]s}]}`

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
	version := strings.TrimSpace(mustRun(t, exec.Command(binary("kubeadm"), "version", "-o", "short")))
	m := c.machine(t, "first", c.kubeadmImages(t, version)...)
	m.write(t, "/etc/kubernetes/audit/policy.yaml", read(t, "manifests/audit-policy.yaml"))
	m.write(t, "/run/init.yaml", fmt.Appendf(nil, kubeadmConfig, bootstrapToken, m.address, version,
		fmt.Sprintf(kubeletConfig, true, false, m.cgroup()), fmt.Sprintf(nodeRegistration, m.address, m.cgroup())))
	for _, phase := range []string{"certs", "kubeconfig"} {
		m.must(t, binary("kubeadm"), "init", "phase", phase, "all", "--config=/run/init.yaml")
	}
	c.ca = &csrenv.CA{CertPEM: read(t, m.file(pkiDir+"/ca.crt")), KeyPEM: read(t, m.file(pkiDir+"/ca.key"))}
	public := kit.Certificate(t, c.ca).PublicKey
	key, ok := public.(*rsa.PublicKey)
	kit.Check(t, ok && key.N.BitLen() == 2048, "the key of kubeadm's CA is a %T, want RSA with 2048 bits as by default", public)
	ended(t, startKubeadm(t, m, "init", "--config=/run/init.yaml"), "Your Kubernetes control-plane has initialized successfully!")
	data := read(t, m.file("/etc/kubernetes/admin.conf"))
	kit.Write(t, c.path("admin.kubeconfig"), data)
	kit.NoError(t, os.Symlink(m.file("/etc/kubernetes/audit/audit.log"), c.path("audit.log")))
	config := kit.Must(clientcmd.RESTConfigFromKubeConfig(data))(t)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	c.config, c.admin = config, newAdmin(t, config)
	c.nodeReady(t, m.name)
	return m
}

// kubeadmImages writes the programs of the control plane as the images that kubeadm names, and returns the archives.
func (c *cluster) kubeadmImages(t *testing.T, version string) (archives []string) {
	images := mustRun(t, exec.Command(binary("kubeadm"), "config", "images", "list", "--kubernetes-version="+version))
	for image := range strings.FieldsSeq(images) {
		name, _, _ := strings.Cut(path.Base(image), ":")
		if !slices.Contains([]string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}, name) {
			continue // of an add-on, or the sandbox image, which containerd has by another name
		}
		archive := c.path(filepath.Join("images", "kubeadm-"+name+".tar"))
		kit.NoError(t, writeArchive(archive, image, binary(name)))
		archives = append(archives, archive)
	}
	kit.Require(t, len(archives) == 4, "kubeadm names other images: %s", images)
	return archives
}

// startKubeadm starts kubeadm, and the kubelet at the moment at which kubeadm expects it to start.
func startKubeadm(t *testing.T, m *machine, args ...string) *process {
	p := startProcess(t, m.dir, m.name+"-kubeadm", m.command(append([]string{binary("kubeadm")}, args...)...))
	until(t, time.Minute, "kubeadm starts the kubelet", func(context.Context) (bool, error) {
		output := string(read(t, p.log))
		kit.Require(t, p.ended() == nil, "kubeadm has ended:\n%s", output)
		return strings.Contains(output, "Starting the kubelet"), nil
	})
	// As in kubeadm's 10-kubeadm.conf.
	const unit = `. /var/lib/kubelet/kubeadm-flags.env; exec "$@" $KUBELET_KUBEADM_ARGS`
	m.kubelet = startProcess(t, m.dir, m.name+"-kubelet", m.command("sh", "-ec", unit, "kubelet", binary("kubelet"),
		"--bootstrap-kubeconfig="+bootstrapPath, "--kubeconfig="+kubeconfigPath, "--config=/var/lib/kubelet/config.yaml"))
	return p
}

func ended(t *testing.T, p *process, want string) {
	t.Helper()
	until(t, 3*time.Minute, "kubeadm ends", func(context.Context) (bool, error) { return p.ended() != nil, nil })
	if output := string(read(t, p.log)); !p.ended().Success() || !strings.Contains(output, want) {
		t.Fatalf("%s: %v\n%s", p.name, p.ended(), output)
	}
}

// switchOff runs the commands of the page that switch the certificate controllers of kube-controller-manager off, on
// the node of the control plane, in a folder like a clone of the repository.
func (c *cluster) switchOff(t *testing.T, m *machine) {
	page := read(t, filepath.Join(root, "docs/how-to/migrate-from-kcm.md"))
	block := regexp.MustCompile("(?s)```sh\n(   install -D .*?)```").FindStringSubmatch(string(page))
	kit.Require(t, block != nil, "the page has no commands that install the patch")
	script := "export KUBECONFIG=/etc/kubernetes/admin.conf PATH=" + filepath.Dir(binary("kubeadm")) + ":" + filepath.Dir(binary("kubectl")) + ":$PATH\n" +
		"mkdir /run/clone && cd /run/clone && ln -s " + kit.Must(filepath.Abs(root))(t) + "/config config\n" +
		regexp.MustCompile("(?m)^   ").ReplaceAllString(block[1], "")
	m.must(t, "bash", "-ec", script)
	name := "kube-controller-manager-" + m.name
	until(t, time.Minute, "kube-controller-manager has the flags of the patch", func(context.Context) (bool, error) {
		command, err := c.tryKubectl("-n", metav1.NamespaceSystem, "get", "pod", name, "-o", "jsonpath={.spec.containers[0].command}")
		return strings.Contains(command, `"--controllers=*,bootstrapsigner,tokencleaner"`) &&
			strings.Contains(command, `"--controllers=-csrapproving,-csrsigning,-csrcleaner"`), err
	})
	c.podReady(t, metav1.NamespaceSystem, name)
}

// kubeadmJoin starts kubeadm join and a kubelet on another machine, and returns once the node has requested its
// certificate. kubeadm verifies the cluster by the signature of the bootstrapsigner and by the hash of the CA.
func (c *cluster) kubeadmJoin(t *testing.T) (*machine, *process) {
	m := c.machine(t, "joined")
	m.write(t, "/run/join.yaml", fmt.Appendf(nil, joinConfig, bootstrapToken, strings.TrimPrefix(c.config.Host, "https://"),
		sha256.Sum256(kit.Certificate(t, c.ca).RawSubjectPublicKeyInfo), fmt.Sprintf(nodeRegistration, m.address, m.cgroup())))
	join := startKubeadm(t, m, "join", "--config=/run/join.yaml")
	until(t, time.Minute, "the node has requested its certificate", func(ctx context.Context) (bool, error) {
		requests, err := c.requestsOf(ctx, m.name)
		return len(requests) > 0, err
	})
	return m, join
}

// wantUntouched checks that kube-controller-manager works, and that no program has approved or signed the requests of node.
func (c *cluster) wantUntouched(t *testing.T, node string) {
	c.kubectl(t, "-n", namespace, "wait", "--for=create", "serviceaccount/default", "--timeout=60s")
	requests, err := c.requestsOf(t.Context(), node)
	kit.Require(t, err == nil && len(requests) > 0, "no request of %s: %v", node, err)
	for i := range requests {
		c.wantPending(t, &requests[i])
	}
}

// TestNodes lets kubelets of several versions join and renew, and one wait for six minutes. That takes too long for every change.
func TestNodes(t *testing.T) {
	versions := map[string]string{"new": binary("kubelet")}
	for i, old := range strings.Fields(os.Getenv("OLD_KUBELETS")) {
		versions[fmt.Sprint("old-", i+1)] = old
	}
	kit.Require(t, len(versions) != 1, "OLD_KUBELETS names no kubelets of older versions: make nightly PARTS=e2e-nightly does")
	c := startCluster(t)
	c.install(t, "manifests/default", c.ca, "csr-controller-manager")
	for name, path := range versions {
		c.join(t, name, kubeletOptions{Binary: path})
	}
	seen := map[string]string{}
	for name := range versions {
		c.nodeReady(t, name)
		c.runPod(t, name)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.get(t, node)
		version := node.Status.NodeInfo.KubeletVersion
		kit.Check(t, seen[version] == "", "%s and %s both have version %s", name, seen[version], version)
		seen[version] = name
	}
	t.Run("at the same time", func(t *testing.T) {
		c.kubectl(t, "apply", "-k", "manifests/patient")
		patient := c.machine(t, "patient")
		parallel(t, "a kubelet joins when it is approved after six minutes", func(t *testing.T) { c.testPatience(t, patient) })
		for name := range versions {
			parallel(t, "the certificate rotates, "+name, func(t *testing.T) { c.testRotation(t, c.machines[name]) })
		}
	})
}

// testPatience approves a request after six minutes. The kubelet waits as long, although KEP-266 says that it restarts after
// five minutes. Its token belongs to a group that may create requests, but whose requests are not approved.
func (c *cluster) testPatience(t *testing.T, m *machine) {
	m.firstKubelet(t, c.bootstrapConfig("07401c.f395accd246ae52d"), kubeletOptions{})
	request := c.refused(t, m.name)
	time.Sleep(6 * time.Minute)
	c.kubectl(t, "create", "clusterrolebinding", "patient-nodes-are-approved", "--group=system:bootstrappers:patient",
		"--clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient")
	c.nodeWithin(t, m.name, 2*time.Minute)
	c.get(t, request)
	_, cert := m.current(t)
	kit.Check(t, cert.Equal(issued(request)), "the kubelet does not use the certificate of request %s, for which it has waited", request.Name)
}

const (
	// staticUser and staticFiles are those of config/overlays/static-pod.
	staticUser, staticFiles = "system:csr-controller-manager", "/etc/kubernetes/csr-controller-manager"
	pkiDir                  = "/etc/kubernetes/pki"
	// firstMachine is the address of the first machine.
	firstMachine = "10.99.0.2"
)

// TestStaticPods runs only a kubelet without a client certificate. It starts the API server and the manager from files,
// requests a certificate from the API server, and gets it from the manager.
func TestStaticPods(t *testing.T) {
	c := newCluster(t, firstMachine)
	c.certificates(t)
	m := c.staticControlPlane(t, "static")
	m.write(t, staticPodDir+"/manager.yaml", []byte(c.kubectl(t, "kustomize", filepath.Join(root, "config/overlays/static-pod/pod"))))
	for name, data := range map[string][]byte{
		"kubeconfig": kit.Must(testcluster.Kubeconfig(clientConfig(c.server(), c.ca, clientPair(t, c.ca, staticUser))))(t),
		"ca.crt":     c.ca.CertPEM,
		"ca.key":     c.ca.KeyPEM,
	} {
		m.write(t, filepath.Join(staticFiles, name), data)
		kit.NoError(t, os.Chown(m.file(filepath.Join(staticFiles, name)), 65532, 65532))
	}
	m.firstKubelet(t, c.bootstrapConfig(bootstrapToken), kubeletOptions{StaticPods: true, SelfSigned: true})
	c.waitForAPIServer(t)
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	c.kubectl(t, "apply", "-k", filepath.Join(root, "config/overlays/static-pod"))
	c.nodeReady(t, m.name)
	for _, name := range []string{"etcd", "kube-apiserver", "csr-controller-manager"} {
		c.podReady(t, metav1.NamespaceSystem, name+"-"+m.name)
	}
	file, cert := m.current(t)
	c.wantIdentity(t, m, file, cert)
	requests := kit.Must(c.requestsOf(t.Context(), m.name))(t)
	kit.Check(t, len(requests) == 1 && issued(&requests[0]) != nil && requests[0].Spec.Username == bootstrapUser,
		"requests of the node: %+v, want one of %s with a certificate", requests, bootstrapUser)
}

// staticControlPlane makes a machine with the files that kubeadm init would write to a control-plane node. Its kubelet starts
// etcd and the API server.
func (c *cluster) staticControlPlane(t *testing.T, name string) *machine {
	var archives []string
	for program, image := range map[string]string{"etcd": etcdImage, "kube-apiserver": apiServerImage} {
		archives = append(archives, c.path(filepath.Join("images", program+".tar")))
		kit.NoError(t, writeArchive(archives[len(archives)-1], image, binary(program)))
	}
	m := c.machine(t, name, archives...)
	writePKI(t, m.file(pkiDir), c.address, c.ca)
	m.write(t, staticPodDir+"/etcd.yaml", staticPod(t, "etcd", etcdImage, etcdArgs("/data")))
	m.write(t, staticPodDir+"/kube-apiserver.yaml", staticPod(t, "kube-apiserver", apiServerImage, apiServerArgs(pkiDir, c.address)))
	return m
}

func staticPod(t *testing.T, name, image string, args []string) []byte {
	t.Helper()
	return kit.Must(yaml.Marshal(&corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem},
		Spec: corev1.PodSpec{
			HostNetwork: true, PriorityClassName: "system-node-critical",
			TerminationGracePeriodSeconds: new(int64(1)), // an API server uses all of it while it has watches; the default is 30
			Containers: []corev1.Container{{
				Name: name, Image: image, ImagePullPolicy: corev1.PullNever, Args: args,
				VolumeMounts: []corev1.VolumeMount{{Name: "pki", MountPath: pkiDir, ReadOnly: true}, {Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{
				{Name: "pki", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: pkiDir}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}))(t)
}
