//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	// authorizationFile is kept by the DaemonSet of config/overlays/authorization-files.
	authorizationFile = pkiDir + "/csr-authorization/authorization.yaml"
	blockList         = "csr-node-block-list"
	// stolenAccount is the ServiceAccount of the Pods on the node that is blocked, and stolenUser a user with a certificate.
	stolenAccount, stolenUser = "app", "mallory"
)

// TestBlockedKubelet blocks a node while its kubelet serves a Pod, and unblocks it. The control plane is as kubeadm makes it: the
// API server is a static Pod that sees the folder /etc/kubernetes/pki of its host. To save time, a node counts as lost after 20 s
// instead of 50, and the caches of the other kubelet keep an answer for 5 s instead of 5 minutes.
func TestBlockedKubelet(t *testing.T) {
	c := newCluster(t, firstMachine)
	c.certificates(t)
	first := c.staticControlPlane(t, firstNode)
	first.must(t, "ip", "address", "add", serviceAddress+"/32", "dev", "lo") // instead of kube-proxy
	first.firstKubelet(t, c.firstConfig(t), kubeletOptions{KeepCertificate: true, StaticPods: true, SelfSigned: true, ShortCaches: true})
	c.startControllers(t, first.file(pkiDir), "--node-monitor-grace-period=20s")
	c.waitForAPIServer(t)
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	c.nodeReady(t, firstNode)
	worker := c.join(t, "worker", kubeletOptions{SelfSigned: true}) // it waits for the manager
	step(t, "first the file", func(t *testing.T) { c.testAuthorizationFile(t, first) })
	c.nodeReady(t, worker.name) // before the managers lose their API server for a while
	step(t, "then the flag", func(t *testing.T) { c.testAuthorizationFlag(t, first) })
	var stolen *credentials
	step(t, "a kubelet serves a Pod", func(t *testing.T) {
		stolen = c.steal(t, worker, first)
		stolen.work(t)
	})
	before, starts := c.running(t, worker, servedPod), worker.kubeletID(t)
	step(t, "blocked", func(t *testing.T) { c.testBlocked(t, worker, stolen) })
	kit.Equal(t, "the Pod's container on the blocked node", c.running(t, worker, servedPod), before)
	step(t, "unblocked", func(t *testing.T) {
		c.block(t, map[string]string{"nodes": ""})
		stolen.work(t)
		c.nodeReady(t, worker.name)
		c.podReady(t, metav1.NamespaceDefault, "later")
	})
	kit.Equal(t, "the Pod's container afterwards", c.running(t, worker, servedPod), before)
	kit.Equal(t, "the process of the kubelet", worker.kubeletID(t), starts)
}

// testAuthorizationFile installs the manager and the DaemonSet, which writes the file that no API server reads yet.
func (c *cluster) testAuthorizationFile(t *testing.T, first *machine) {
	c.kubectl(t, "label", "node", firstNode, "node-role.kubernetes.io/control-plane=")
	c.kubectl(t, "apply", "-f", filepath.Join(root, "config/rbac/namespace.yaml"))
	c.kubectl(t, "-n", namespace, "create", "configmap", blockList, "--from-literal=nodes=")
	c.kubectl(t, "apply", "-k", filepath.Join(root, "config/overlays/authorization-files"))
	c.install(t, "manifests/revocation", c.ca, "csr-controller-manager")
	canary := c.listed(t).Canary()
	until(t, time.Minute, "the DaemonSet has written the file", func(context.Context) (bool, error) {
		data, err := os.ReadFile(first.file(authorizationFile))
		return strings.Contains(string(data), canary), err
	})
	c.proven(t, "no file of write-authorization")
}

// testAuthorizationFlag changes the manifest of the API server, as kubeadm does, and waits until the kubelet has restarted it.
func (c *cluster) testAuthorizationFlag(t *testing.T, first *machine) {
	args := apiServerArgs(pkiDir, c.address)
	i := slices.Index(args, "--authorization-mode=Node,RBAC")
	args[i] = "--authorization-config=" + authorizationFile
	canary := c.listed(t).Canary()
	first.write(t, staticPodDir+"/kube-apiserver.yaml", staticPod(t, "kube-apiserver", apiServerImage, args))
	until(t, time.Minute, "the API server refuses the canary", func(ctx context.Context) (bool, error) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: canary, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/", Verb: "get"},
		}}
		err := c.admin.Create(ctx, review)
		return review.Status.Denied && strings.HasPrefix(review.Status.Reason, "blocked: "), err
	})
}

// testBlocked blocks the node and the user. The Pods on the node go on running, but the kubelet can't start another one.
func (c *cluster) testBlocked(t *testing.T, worker *machine, stolen *credentials) {
	c.block(t, map[string]string{"nodes": worker.name, "users": stolenUser})
	stolen.refused(t)
	c.createPod(t, worker, "later") // the kubelet learns of it by the watch that it had before
	until(t, 20*time.Second, "the kubelet can't read the Secret of another Pod", func(context.Context) (bool, error) {
		for line := range strings.Lines(string(read(t, worker.kubelet.log))) {
			if strings.Contains(line, `secrets \"later\" is forbidden`) && strings.Contains(line, "blocked: ") {
				return true, nil
			}
		}
		return false, nil
	})
	until(t, time.Minute, "Node "+worker.name+" is not Ready", func(ctx context.Context) (bool, error) {
		node := &corev1.Node{}
		err := c.admin.Get(ctx, client.ObjectKey{Name: worker.name}, node)
		return ready(node).Status == corev1.ConditionUnknown, err
	})
	c.proven(t, "")
	stolen.refused(t)
	later := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "later"}}
	c.get(t, later)
	kit.Equal(t, "the phase of the Pod whose Secret can't be read", later.Status.Phase, corev1.PodPending)
}

// block writes the list.
func (c *cluster) block(t *testing.T, data map[string]string) {
	t.Helper()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: blockList}}
	c.get(t, obj)
	obj.Data = data
	kit.NoError(t, c.admin.Update(t.Context(), obj))
}

// listed returns what the list blocks.
func (c *cluster) listed(t *testing.T) entries.Entries {
	t.Helper()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: blockList}}
	c.get(t, obj)
	read, problems, err := entries.Parse(obj.Data)
	kit.Require(t, err == nil && len(problems) == 0, "the list is bad: %v, %v", problems, err)
	return read
}

// proven waits until the manager has published that the one API server has a problem with the list, or none.
func (c *cluster) proven(t *testing.T, problem string) {
	t.Helper()
	digest := c.listed(t).Digest()
	until(t, time.Minute, "the manager publishes whether the API server enforces the list", func(ctx context.Context) (bool, error) {
		obj, status := &corev1.ConfigMap{}, entries.Enforcement{}
		if err := c.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: blockList + entries.StatusSuffix}, obj); err != nil {
			return false, err
		}
		err := json.Unmarshal([]byte(obj.Data[entries.StatusKey]), &status)
		return status.Digest == digest && len(status.Servers) == 1 && status.Servers[0].Address == c.address+":443" &&
			(status.Servers[0].Problem == "") == (problem == "") && strings.Contains(status.Servers[0].Problem, problem), err
	})
}

// createPod creates a Pod on m that mounts a Secret. Both have that name.
func (c *cluster) createPod(t *testing.T, m *machine, name string) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}
	kit.NoError(t, c.admin.Create(t.Context(), &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"password": "of " + name}}))
	kit.NoError(t, c.admin.Create(t.Context(), &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		NodeName: m.name, ServiceAccountName: stolenAccount,
		Containers: []corev1.Container{{
			Name: "pause", Image: pauseImage, ImagePullPolicy: corev1.PullNever,
			VolumeMounts: []corev1.VolumeMount{{Name: "secret", MountPath: "/secret"}},
		}},
		Volumes: []corev1.Volume{{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}},
	}}))
}

// servedPod is the Pod of which the blocked node has a token and a Secret.
const servedPod = "served"

// running returns the line of containerd about the container of a Pod, with its process, which must run.
func (c *cluster) running(t *testing.T, m *machine, pod string) string {
	t.Helper()
	obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: pod}}
	c.get(t, obj)
	id := strings.TrimPrefix(obj.Status.ContainerStatuses[0].ContainerID, "containerd://")
	for line := range strings.Lines(m.must(t, "ctr", "-n", "k8s.io", "tasks", "ls")) {
		if strings.HasPrefix(line, id) && strings.Contains(line, "RUNNING") {
			return line
		}
	}
	t.Fatalf("container %s does not run", id)
	return ""
}

// credentials are calls with what a thief has stolen from a node: to API servers, and to the port of another node's kubelet, which
// asks an API server.
type credentials struct {
	apiServer, kubelet map[string]func(context.Context) error
}

// steal runs a Pod on m, and takes the kubelet's certificate and the token of the Pod from the files of m. A user with a
// certificate has the same rights as the Pod. The other kubelet is that of other.
func (c *cluster) steal(t *testing.T, m, other *machine) *credentials {
	c.kubectl(t, "create", "serviceaccount", stolenAccount)
	c.kubectl(t, "create", "clusterrolebinding", "stolen", "--clusterrole=system:kubelet-api-admin", "--user="+stolenUser,
		"--serviceaccount="+metav1.NamespaceDefault+":"+stolenAccount)
	c.createPod(t, m, servedPod)
	c.podReady(t, metav1.NamespaceDefault, servedPod)
	volumes := m.file("/var/lib/kubelet/pods/*/volumes/")
	found, err := filepath.Glob(volumes + "/kubernetes.io~secret/secret/password")
	kit.Require(t, err == nil && len(found) == 1 && string(read(t, found[0])) == "of "+servedPod, "the Secret on the node: %s, %v", found, err)
	found, err = filepath.Glob(volumes + "/kubernetes.io~projected/*/token")
	kit.Require(t, err == nil && len(found) == 1, "tokens of Pods on the node: %s, %v", found, err)

	file, _ := m.current(t)
	node, pod := rest.AnonymousClientConfig(c.config), rest.AnonymousClientConfig(c.config)
	node.CertData, node.KeyData = file, file
	pod.BearerToken = string(read(t, found[0]))
	user := clientConfig(c.server(), c.ca, clientPair(t, c.ca, stolenUser))
	asNode := kubernetes.NewForConfigOrDie(node).CoreV1()
	stolen := &credentials{map[string]func(context.Context) error{
		"the node reads its Secret": func(ctx context.Context) error {
			secret, err := asNode.Secrets(metav1.NamespaceDefault).Get(ctx, servedPod, metav1.GetOptions{})
			return errors.Join(err, kit.OrError(err != nil || string(secret.Data["password"]) == "of "+servedPod, "it is %q", secret.Data))
		},
		"the node writes its status": func(ctx context.Context) error {
			_, err := asNode.Nodes().Patch(ctx, m.name, types.MergePatchType, []byte(`{"status": {}}`), metav1.PatchOptions{}, "status")
			return err
		},
	}, map[string]func(context.Context) error{}}
	for name, config := range map[string]*rest.Config{"the token of the Pod": pod, "the user": user} {
		stolen.apiServer[name] = get(config, "/api/v1/nodes")
		config = rest.CopyConfig(config)
		config.Host, config.ServerName, config.CAData = "https://"+other.address+":10250", other.name, read(t, other.file("/var/lib/kubelet/pki/kubelet.crt"))
		stolen.kubelet[name] = get(config, "/pods")
	}
	return stolen
}

// get returns a call for path with config.
func get(config *rest.Config, path string) func(context.Context) error {
	client := kubernetes.NewForConfigOrDie(config).Discovery().RESTClient()
	return func(ctx context.Context) error { return client.Get().AbsPath(path).Do(ctx).Error() }
}

// work waits until all calls succeed: ten seconds for the API server, and as long again for the caches of the other kubelet.
func (s *credentials) work(t *testing.T) {
	t.Helper()
	all := maps.Clone(s.apiServer)
	maps.Copy(all, s.kubelet)
	for name, call := range all {
		kit.Within(t, 20*time.Second, name+" works", call)
	}
}

// refused waits until all calls are refused, in the times of work.
func (s *credentials) refused(t *testing.T) {
	t.Helper()
	began := time.Now()
	for name, call := range s.apiServer {
		kit.Within(t, 10*time.Second-time.Since(began), name+" is refused by the API server", func(ctx context.Context) error {
			err := call(ctx)
			return kit.OrError(apierrors.IsForbidden(err) && strings.Contains(err.Error(), "blocked: "), "%v", err)
		})
	}
	t.Logf("refused by the API server after %s", time.Since(began).Round(time.Millisecond))
	for name, call := range s.kubelet {
		kit.Within(t, 20*time.Second-time.Since(began), name+" is refused by the other kubelet", func(ctx context.Context) error {
			err := call(ctx)
			return kit.OrError(apierrors.IsForbidden(err), "%v", err)
		})
	}
	t.Logf("refused by the other kubelet after %s", time.Since(began).Round(time.Millisecond))
}
