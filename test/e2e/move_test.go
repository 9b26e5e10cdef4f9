//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	testcluster "github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const (
	// operatorFile is the kubeconfig of the person who rotates the CA, and whose certificate is of that CA.
	operatorFile = "operator.kubeconfig"
	// moveNamespace is where move-nodes runs its Pods.
	moveNamespace = "csr-move-nodes"
	// unfinishedLink exists while renew-kubelet has replaced a client certificate and waits for the kubelet.
	unfinishedLink = "/var/lib/kubelet/pki/kubelet-client-before.pem"
	// clientLink leads to the pair that a kubelet uses.
	clientLink  = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	kubeletFile = "/var/lib/kubelet/config.yaml"
)

// TestMoveNodes rotates the CA of a cluster with three real kubelets and their Pods, from start to Completed, by the commands of
// docs/how-to/rotate-a-ca.md alone. All certificates are valid for a year, so that no kubelet moves by itself. The kernel where it
// was written has no AppArmor, so that the Pod's appArmorProfile has no effect there.
func TestMoveNodes(t *testing.T) {
	removeServiceCgroup(t)
	c := startMoving(t)
	step(t, "rotation is installed, and adopts the CA", func(t *testing.T) { c.adopt(t, "manifests/move") })
	first, a, b := c.machines[firstNode], c.join(t, "worker-a", kubeletOptions{Service: true}), c.join(t, "worker-b", kubeletOptions{Service: true})
	c.wantJoined(t, a)
	c.wantJoined(t, b)
	c.runPod(t, first.name)
	pods := map[string]string{}
	for name, m := range c.machines {
		pods[name] = c.running(t, m, "on-"+name)
	}
	stolen, _ := a.current(t)
	starts := a.kubeletID(t)
	a.must(t, kit.Must(testcluster.Manager())(t), "renew-kubelet", "--serving")
	kit.Equal(t, "the process of a kubelet that has certificates of the CA", a.kubeletID(t), starts)

	began := time.Now()
	step(t, "start and confirm", func(t *testing.T) { c.testStart(t) })
	next := &csrenv.CA{CertPEM: c.ring(t, signingSecret).Signing.Cert}
	calm := []func(){c.watchOutages(t, first.name), c.watchOutages(t, a.name)}
	step(t, "a node that is down is named", func(t *testing.T) { c.testDown(t, b) })
	step(t, "a Pod of the manifest moves a node", func(t *testing.T) { c.testManifest(t, a) })
	step(t, "a kubelet that does not come back", func(t *testing.T) { c.testBroken(t, b, a, next) })
	step(t, "killed in the middle, and run again", func(t *testing.T) { c.testKilled(t, b) })
	for name, m := range c.machines {
		c.wantCertificatesOf(t, m, next)
		kit.Equal(t, "the container of the Pod on "+name, c.running(t, m, "on-"+name), pods[name])
	}
	for _, stop := range calm {
		stop()
	}
	step(t, "the operator's kubeconfig", func(t *testing.T) { c.testRenewFile(t, next) })
	step(t, "complete", func(t *testing.T) {
		kit.Must(c.whoAmI(t.Context(), stolen))(t)
		for _, operation := range []string{"accept", "complete"} {
			mustRun(t, c.page(t, "rotation "+operation+" "+authorityName+" --yes"))
		}
		c.reaches(t, authorityName, time.Second, v1alpha1.Completed, nil)
		c.wantUnauthorized(t, "a certificate of the old CA", stolen)
	})
	t.Logf("from start to Completed: %s", time.Since(began).Round(time.Second))
	for name, m := range c.machines {
		c.nodeReady(t, name)
		c.wantReachable(t, m)
		kit.Equal(t, "the container of the Pod on "+name, c.running(t, m, "on-"+name), pods[name])
	}
}

// removeServiceCgroup removes the cgroup of kubelet.service at the end, unless others use it.
func removeServiceCgroup(t *testing.T) {
	kit.AtEnd(t, func() error {
		for _, dir := range []string{"systemd/system.slice/kubelet.service", "systemd/system.slice"} {
			_ = os.Remove("/sys/fs/cgroup/" + dir)
		}
		return nil
	})
}

// startMoving starts a control plane whose own kubelet rotates its certificate, which it has from the CA's key as after kubeadm init. An
// administrator has one, too. A node counts as lost after 20 s instead of 50.
func startMoving(t *testing.T) *cluster {
	c := newCluster(t, controlPlaneAddress)
	c.certificates(t)
	c.start(t, "etcd", "etcd", etcdArgs(c.path("etcd"))...)
	c.startAPIServer(t)
	c.startControllers(t, c.path("pki"), "--node-monitor-grace-period=20s")
	m := c.machine(t, firstNode)
	const pair = "/var/lib/kubelet/pki/kubelet-client-2026-01-01-00-00-00.pem"
	m.write(t, pair, clientPair(t, c.next, "system:node:"+firstNode, "system:nodes").file())
	m.must(t, "ln", "-s", pair, clientLink)
	config := rest.AnonymousClientConfig(c.config)
	config.CertFile, config.KeyFile = clientLink, clientLink
	m.firstKubelet(t, config, kubeletOptions{Service: true})
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	c.nodeReady(t, firstNode)

	const group = "kubeadm:cluster-admins"
	c.kubectl(t, "create", "clusterrolebinding", group, "--clusterrole=cluster-admin", "--group="+group)
	person := clientConfig(c.server(), c.ca, clientPair(t, c.next, "kubernetes-admin", group))
	kit.Write(t, c.path(operatorFile), kit.Must(testcluster.Kubeconfig(person))(t))
	return c
}

// page returns a command of the page with more arguments, as the person who rotates the CA.
func (c *cluster) page(t *testing.T, command string, more ...string) *exec.Cmd {
	t.Helper()
	page := string(read(t, filepath.Join(root, "docs/how-to/rotate-a-ca.md")))
	kit.Check(t, strings.Contains(page, "kubectl csr "+command), "the page has no command: kubectl csr %s", command)
	cmd := exec.Command(kit.Must(testcluster.Plugin())(t), append(strings.Fields(command), more...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.path(operatorFile))
	return cmd
}

// testStart starts the rotation, and confirms that the API server has read the file that has both CAs of kubelets' servers.
func (c *cluster) testStart(t *testing.T) {
	start := startProcess(t, c.dir, "rotation-start", c.page(t, "rotation start "+authorityName))
	found := c.reaches(t, authorityName, 3*time.Minute, v1alpha1.Preparing, func(s *status) bool {
		return len(s.WaitingFor) == 1 && strings.Contains(s.WaitingFor[0], v1alpha1.OperationConfirm.Command()) &&
			meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionPublished)
	})
	c.trustsFile(t, clientFile, []string{found.Candidate.Certificate, found.Signing.Certificate}, nil)
	c.restartAPIServer(t)
	mustRun(t, c.page(t, "rotation confirm "+authorityName))
	until(t, 30*time.Second, "rotation start ends", func(context.Context) (bool, error) { return start.ended() != nil, nil })
	output := string(read(t, start.log))
	kit.Check(t, start.ended().Success() && strings.Contains(output, "done: Prepared"), "rotation start: %s\n%s", start.ended(), output)
}

const moveNodes = "rotation move-nodes " + authorityName

// testDown stops the kubelet of m. The plan leaves its node out, and says why.
func (c *cluster) testDown(t *testing.T, m *machine) {
	m.stopService(t)
	until(t, time.Minute, "Node "+m.name+" is not Ready", func(ctx context.Context) (bool, error) {
		node := &corev1.Node{}
		err := c.admin.Get(ctx, client.ObjectKey{Name: m.name}, node)
		return ready(node).Status == corev1.ConditionUnknown, err
	})
	output := mustRun(t, c.page(t, moveNodes, "--dry-run"))
	kit.Check(t, strings.Contains(output, m.name+": it is not Ready"), "the plan does not leave %s out:\n%s", m.name, output)
	m.startKubelet(t, kubeletOptions{Service: true})
	c.nodeReady(t, m.name)
}

// testManifest applies what move-nodes would create, and no more.
func (c *cluster) testManifest(t *testing.T, m *machine) {
	plan := c.page(t, moveNodes, "--dry-run", "--selector="+corev1.LabelHostname+"="+m.name)
	manifest := kit.Must(plan.Output())(t)
	kubectl := func(args ...string) {
		command := exec.Command(binary("kubectl"), append(args, "--kubeconfig="+c.path(operatorFile), "-f", "-")...)
		command.Stdin = strings.NewReader(string(manifest))
		mustRun(t, command)
	}
	kubectl("apply")
	until(t, time.Minute, "the Pod has succeeded", func(ctx context.Context) (bool, error) {
		pod := &corev1.Pod{}
		err := c.admin.Get(ctx, client.ObjectKey{Namespace: moveNamespace, Name: m.name}, pod)
		return pod.Status.Phase == corev1.PodSucceeded, err
	})
	kubectl("delete")
}

// testBroken runs move-nodes while the configuration of m is broken. The command stops with what the Pod says once its kubelet is repaired.
// Until then the Pod is there, and attackers try to use it.
func (c *cluster) testBroken(t *testing.T, m, thief *machine, next *csrenv.CA) {
	good, before := read(t, m.file(kubeletFile)), kit.Must(os.Readlink(m.file(clientLink)))(t)
	m.write(t, kubeletFile, []byte("broken"))
	move := startProcess(t, c.dir, "move-nodes-broken", c.page(t, moveNodes, "--yes"))
	c.unfinished(t, m, move, true)
	c.testAttackers(t, thief, m.name)
	c.unfinished(t, m, move, false)
	kit.Equal(t, "the pair in use", kit.Must(os.Readlink(m.file(clientLink)))(t), before)
	m.write(t, kubeletFile, good)
	until(t, time.Minute, "move-nodes ends", func(context.Context) (bool, error) { return move.ended() != nil, nil })
	output := string(read(t, move.log))
	kit.Check(t, move.ended().ExitCode() == 1 && strings.Contains(output, "node "+m.name+": its Pod says: csr-controller-manager: the "+
		"kubelet did not come back with its new certificates, and has the old ones again: "), "move-nodes: %s\n%s", move.ended(), output)
	_, cert := c.machines[firstNode].current(t)
	kit.Check(t, !signedBy(t, cert, next), "move-nodes went on to %s", firstNode)
	c.nodeReady(t, m.name)
}

// unfinished waits until renew-kubelet has replaced the client certificate of m, or no longer waits for the kubelet.
func (c *cluster) unfinished(t *testing.T, m *machine, move *process, want bool) {
	t.Helper()
	until(t, 150*time.Second, fmt.Sprintf("the renewal on %s is unfinished: %t", m.name, want), func(context.Context) (bool, error) {
		_, err := os.Lstat(m.file(unfinishedLink))
		kit.Require(t, move.ended() == nil, "move-nodes has ended: %s", read(t, move.log))
		return (err == nil) == want, nil
	})
}

// testKilled kills move-nodes and renew-kubelet when that has replaced a certificate on m, and runs move-nodes again: m has not moved,
// although its new certificates were issued.
func (c *cluster) testKilled(t *testing.T, m *machine) {
	move := startProcess(t, c.dir, "move-nodes-killed", c.page(t, moveNodes, "--yes", "--selector="+corev1.LabelHostname+"="+m.name))
	c.unfinished(t, m, move, true)
	kit.NoError(t, move.end(syscall.SIGKILL))
	m.must(t, "sh", "-c", `for one in /proc/[0-9]*; do [ "$(cat $one/comm 2>/dev/null)" != csr-controller- ] || kill -9 ${one#/proc/}; done`)
	kit.Must(os.Lstat(m.file(unfinishedLink)))(t)
	mustRun(t, c.page(t, moveNodes, "--yes"))
	left, err := c.tryKubectl("get", "namespace", moveNamespace)
	kit.Check(t, err != nil && strings.Contains(left, "NotFound"), "the namespace of the Pods is left: %s", left)
}

// testAttackers try to become root on another node: with the credential of thief's kubelet, and with all rights in the namespace
// where the Pod pod runs as root.
func (c *cluster) testAttackers(t *testing.T, thief *machine, pod string) {
	file, _ := thief.current(t)
	config := rest.AnonymousClientConfig(c.config)
	config.CertData, config.KeyData = file, file
	kit.Write(t, c.path("thief.kubeconfig"), kit.Must(testcluster.Kubeconfig(config))(t))
	editor := clientConfig(c.server(), c.ca, clientPair(t, c.ca, "editor"))
	kit.Write(t, c.path("editor.kubeconfig"), kit.Must(testcluster.Kubeconfig(editor))(t))
	c.kubectl(t, "-n", moveNamespace, "create", "rolebinding", "editor", "--clusterrole=cluster-admin", "--user=editor")

	attack := func(who, input, args string) (string, error) {
		command := exec.Command(binary("kubectl"), strings.Fields("--kubeconfig="+c.path(who+".kubeconfig")+" -n "+moveNamespace+" "+args)...)
		command.Stdin = strings.NewReader(input)
		return run(command)
	}
	refused := func(who, input, args, want string) {
		t.Helper()
		output, err := attack(who, input, args)
		kit.Check(t, err != nil && strings.Contains(output, want), "%s does kubectl %s: %v, want it refused with %q\n%s", who, args, err, want, output)
	}
	const guarded = "only the user who runs kubectl csr rotation move-nodes"
	for _, args := range []string{
		"run evil --image=evil", "exec " + pod + " -- /evil", "attach " + pod, "port-forward pod/" + pod + " 10248",
		"get --raw /api/v1/namespaces/" + moveNamespace + "/pods/" + pod + "/proxy/", "debug " + pod + " --image=evil",
		"set image pod/" + pod + " renew-kubelet=evil",
	} {
		refused("editor", "", args, guarded)
	}
	output, err := attack("editor", "", "create job evil --image=evil")
	kit.Check(t, err == nil, "%s", output)
	until(t, 20*time.Second, "the Pod of a Job is refused", func(context.Context) (bool, error) {
		events, err := attack("editor", "", "get events")
		return strings.Contains(events, "FailedCreate") && strings.Contains(events, guarded), err
	})

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thief.name}}
	c.get(t, node)
	mirror := kit.Must(yaml.Marshal(&corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: firstNode, Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: thief.name, Containers: []corev1.Container{{Name: "evil", Image: "evil"}}},
	}))(t)
	refused("thief", string(mirror), "create -f -", guarded)
	for args, want := range map[string]string{
		"label node " + thief.name + " node-role.kubernetes.io/control-plane=": "is not allowed to modify labels",
		"patch node " + firstNode + ` -p {"metadata":{"labels":{"a":"b"}}}`:    "forbidden",
		"-n " + namespace + " get configmap csr-signer-moved":                  "forbidden",
		"delete pod " + pod: "forbidden",
		"patch pod " + pod + ` --subresource=status -p {"status":{"phase":"Succeeded"}}`: "forbidden",
	} {
		refused("thief", "", args, want)
	}
}

// testRenewFile renews the certificate of the person who rotates the CA.
func (c *cluster) testRenewFile(t *testing.T, next *csrenv.CA) {
	mustRun(t, c.page(t, "renew", "--yes", c.path(operatorFile)))
	config := kit.Must(clientcmd.BuildConfigFromFlags("", c.path(operatorFile)))(t)
	kit.Check(t, signedBy(t, kit.Must(tls.X509KeyPair(config.CertData, config.KeyData))(t).Leaf, next), "the new certificate is of another CA")
}

// wantCertificatesOf checks that the kubelet of m has its certificates from ca, and no unfinished renewal.
func (c *cluster) wantCertificatesOf(t *testing.T, m *machine, ca *csrenv.CA) {
	t.Helper()
	_, cert := m.current(t)
	kit.Check(t, signedBy(t, cert, ca), "the client certificate is of another CA")
	kit.Check(t, signedBy(t, c.served(t, m), ca), "the serving certificate is of another CA")
	left := kit.Must(filepath.Glob(m.file("/var/lib/kubelet/pki/*-before.pem")))(t)
	kit.Equal(t, "unfinished renewals", len(left), 0)
}
