package manifests

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// source is a source tree with the manager that was built from it.
type source struct{ root, binary string }

// install is one configuration of config/default.
type install struct {
	name       string
	source     source
	components []string
	config     string // added to the shipped configuration
	// prepare, if set, does the other steps that the pages tell an operator to do.
	prepare func(*testing.T, *upgrade)
}

const signingSecret = "csr-signer"

// features are the features that an upgrade can switch on, each with all steps of its page. The CA that the API server trusts does not exist
// any more after the last one.
var features = []install{
	{
		name: "rotation", components: []string{"rotation"}, config: "rotation: {enabled: true}\n",
		prepare: func(t *testing.T, u *upgrade) { u.make(t, u.authority(t)) },
	},
	{
		name: "kubelet serving", components: []string{"kubelet-serving", "node-identity", "node-block-list", "node-bootstrap"},
		config: "nodeBlockList: " + systemNamespace + "/csr-node-block-list\n" +
			"approval:\n  kubeletServing: {enabled: true, apiServerNodes: [control-plane]}\n  nodeClient: {requireTokenBinding: true}\n",
		prepare: func(t *testing.T, u *upgrade) {
			list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-node-block-list"}}
			list.Data = map[string]string{"nodes": ""}
			u.make(t, list)
		},
	},
	{
		name: "machine inventory", components: []string{"node-identity", "inventory-openshift"}, config: "approval: {nodeClient: {inventory: openshift}}\n",
		prepare: func(t *testing.T, u *upgrade) {
			u.make(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "openshift-machine-api"}})
		},
	},
	{name: "dry run", components: []string{"dry-run"}},
	{
		name: "CA that is created", components: []string{"create-ca"}, config: "  createIfMissing: true\n", // under signing, the last section
		prepare: func(t *testing.T, u *upgrade) {
			kit.NoError(t, u.admin.Delete(t.Context(), kit.SigningSecret(nil, nil)))
		},
	},
}

// TestRollouts takes a release of the chart through its life with helm, and then rolls out config/default, to it each feature, and from each
// to the next one, which switches it off.
func TestRollouts(t *testing.T) {
	t.Parallel()
	testRollouts(t, 1)
}

func testRollouts(t *testing.T, replicas int32) {
	t.Helper()
	u := startUpgrade(t, replicas)
	u.testHelmRelease(t)
	u.roll(t, install{name: "as shipped"})
	for _, feature := range features {
		u.roll(t, feature)
	}
}

// upgrade is a cluster with the real Deployment controller. The test acts as its scheduler and its kubelets. A pod is
// a process of the manager with the ServiceAccount's token and the mounted configuration. It is ready if /readyz
// succeeds.
type upgrade struct {
	*cluster.Cluster
	t        *testing.T
	admin    client.Client
	replicas int32
	current  source
	pods     map[string]*pod
}

type pod struct {
	*cluster.Process
	probes string
	ending bool
}

// startUpgrade is startPods with the namespace and the Secret with the CA.
func startUpgrade(t *testing.T, replicas int32) *upgrade {
	t.Helper()
	u := startPods(t, replicas)
	u.make(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}})
	u.make(t, kit.SigningSecret(u.CA.CertPEM, u.CA.KeyPEM))
	return u
}

// startPods starts a cluster with those controllers of kube-controller-manager that make and delete pods.
func startPods(t *testing.T, replicas int32) *upgrade {
	t.Helper()
	c := kit.Must(cluster.Start())(t)
	u := &upgrade{Cluster: c, t: t, admin: kit.ClientOf(t, c.Config), replicas: replicas, pods: map[string]*pod{}}
	logs := map[string]*cluster.Process{}
	t.Cleanup(func() {
		for name, each := range u.pods {
			logs[name] = each.Process
		}
		for name, each := range logs {
			each.Kill()
			if t.Failed() {
				t.Logf("the end of the log of %s:\n%s", name, each.Tail(15))
			}
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	binary := kit.Must(cluster.Manager())(t)
	u.current = source{root: root, binary: binary}
	kubeconfig := kit.Must(u.WriteKubeconfig("rollout", u.Config))(t)
	logs["kube-controller-manager"] = kit.Must(u.StartProcess("rollout", os.Getenv("KUBE_CONTROLLER_MANAGER"), "--kubeconfig", kubeconfig,
		"--controllers=deployment-controller,replicaset-controller,garbage-collector-controller",
		"--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=false"))(t)
	return u
}

func (u *upgrade) authority(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	return kit.Object(t, fmt.Sprintf(`
apiVersion: csr-controller-manager.io/v1alpha1
kind: SigningAuthority
metadata: {name: cluster}
spec:
  secret: {namespace: %[1]s, name: %[2]s}
  signers: [kubernetes.io/kube-apiserver-client-kubelet, kubernetes.io/kube-apiserver-client]
  trust: {configMaps: [{namespace: %[1]s, name: csr-trust}]}
  verification: {apiServers: [%[3]q], serverName: localhost, settleFor: 1s}
`, systemNamespace, signingSecret, strings.Trim(strings.TrimPrefix(u.Config.Host, "https://"), "/")))
}

// make creates obj, once its kind is served.
func (u *upgrade) make(t *testing.T, obj client.Object) {
	t.Helper()
	u.within(t, time.Minute, "create "+obj.GetName(), func(ctx context.Context) error {
		return client.IgnoreAlreadyExists(u.admin.Create(ctx, obj))
	})
}

// render returns the objects of next, with its configuration and number of replicas.
func (u *upgrade) render(t *testing.T, next install) objects {
	t.Helper()
	text := fmt.Sprintf("resources:\n- ../default\nreplicas: [{name: csr-controller-manager, count: %d}]\n", u.replicas) +
		"configMapGenerator:\n- {name: csr-controller-manager-config, namespace: " + systemNamespace + ", behavior: merge, files: [config.yaml]}\ncomponents:\n"
	for _, name := range next.components {
		text += "- ../" + name + "\n"
	}
	return inFolder(t, next.source.root, map[string]string{"kustomization.yaml": text, "config.yaml": shippedConfig(t, next.source.root) + next.config})
}

// roll applies next, as kubectl apply does, and waits until all replicas are updated and ready, and one of them
// signs.
func (u *upgrade) roll(t *testing.T, next install) {
	t.Helper()
	if next.source == (source{}) {
		next.source = u.current
	}
	all := u.render(t, next)
	order := map[string]int{"Namespace": -1, "CustomResourceDefinition": -1, "Deployment": 1} // kubectl's: others need the first
	for _, step := range []int{-1, 0, 1} {
		for name, obj := range all {
			if order[obj.GetKind()] != step {
				continue
			}
			if obj.GetKind() == "Deployment" {
				annotations := map[string]string{"binary": next.source.binary, "rolled-to": next.name} // like another image
				kit.NoError(t, unstructured.SetNestedStringMap(obj.Object, annotations, "spec", "template", "metadata", "annotations"))
			}
			apply := client.ApplyConfigurationFromUnstructured(obj)
			if err := u.admin.Apply(t.Context(), apply, client.FieldOwner("kubectl"), client.ForceOwnership); err != nil {
				t.Fatalf("%s: %s: %v", next.name, name, err)
			}
		}
		if step == -1 && next.prepare != nil {
			next.prepare(t, u)
		}
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: common}}
	u.within(t, time.Minute, "the rollout of "+next.name, func(ctx context.Context) error {
		if err := u.admin.Get(ctx, client.ObjectKeyFromObject(deployment), deployment); err != nil {
			return err
		}
		status, want := deployment.Status, u.replicas
		got := []int32{status.UpdatedReplicas, status.Replicas, status.AvailableReplicas, int32(len(u.pods))}
		if status.ObservedGeneration < deployment.Generation || !slices.Equal(got, slices.Repeat([]int32{want}, len(got))) {
			return fmt.Errorf("%d new, all, available and running pods, %d wanted: %s", got, want, u.notReady(ctx))
		}
		return nil
	})
	if !slices.Contains(next.components, "dry-run") {
		u.signs(t, next.name)
	}
}

// signs waits until an approved request has its certificate, and returns that.
func (u *upgrade) signs(t *testing.T, what string) *x509.Certificate {
	t.Helper()
	obj := kit.ClientRequest(t, "upgrade")
	u.approved(t, what, obj)
	return kit.Leaf(t, obj)
}

// approved creates and approves obj, and waits until it has its certificate.
func (u *upgrade) approved(t *testing.T, what string, obj *kit.Request) {
	t.Helper()
	kit.NoError(t, u.admin.Create(t.Context(), obj))
	csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Decided by a test.", time.Time{})
	kit.NoError(t, u.admin.SubResource("approval").Update(t.Context(), obj))
	u.within(t, time.Minute, "a certificate after the rollout of "+what, func(ctx context.Context) error {
		if err := u.admin.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		return kit.OrError(len(obj.Status.Certificate) > 0, "it has none: %+v", obj.Status.Conditions)
	})
}

// within runs the pods until check returns nil.
func (u *upgrade) within(t *testing.T, bound time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	kit.Within(t, bound, what, func(ctx context.Context) error {
		if err := u.work(ctx); err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		return check(ctx)
	})
}

// work starts, probes and ends pods.
func (u *upgrade) work(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := u.admin.List(ctx, pods, client.InNamespace(systemNamespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		obj := &pods.Items[i]
		running := u.pods[obj.Name]
		var err error
		switch {
		case obj.DeletionTimestamp != nil && running == nil:
			err = u.admin.Delete(ctx, obj, client.GracePeriodSeconds(0))
		case obj.DeletionTimestamp != nil:
			err = u.end(ctx, obj, running)
		case running == nil:
			err = u.start(ctx, obj)
		case running.Ended() != nil:
			return fmt.Errorf("pod %s has ended: %s", obj.Name, running.Tail(5))
		default:
			err = u.probe(ctx, obj, running)
		}
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// end asks the pod to end, and removes it once it has ended.
func (u *upgrade) end(ctx context.Context, obj *corev1.Pod, running *pod) error {
	if !running.ending {
		running.ending = true
		go func() { _ = running.Stop() }()
	}
	if running.Ended() == nil {
		return nil
	}
	delete(u.pods, obj.Name)
	return u.admin.Delete(ctx, obj, client.GracePeriodSeconds(0))
}

// start runs the pod's container as a process.
func (u *upgrade) start(ctx context.Context, obj *corev1.Pod) error {
	if err := u.admin.SubResource("binding").Create(ctx, obj, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}); err != nil {
		return err
	}
	container, mounted := obj.Spec.Containers[0], &corev1.ConfigMap{}
	if err := u.admin.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: obj.Spec.Volumes[0].ConfigMap.Name}, mounted); err != nil {
		return err
	}
	file := filepath.Join(u.Dir, obj.Name+".yaml")
	if err := os.WriteFile(file, []byte(mounted.Data["config.yaml"]), 0o600); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: obj.Spec.ServiceAccountName}}
	kubeconfig, err := u.WriteKubeconfig(obj.Name, kit.AccountConfig(u.t, u.Config, u.admin, account))
	if err != nil {
		return err
	}
	var addresses [2]string
	for i := range addresses {
		if addresses[i], err = cluster.FreeAddress(); err != nil {
			return err
		}
	}
	args := []string{"--kubeconfig=" + kubeconfig, "--leader-elect-resource-namespace=" + systemNamespace}
	for _, arg := range container.Args {
		args = append(args, strings.Replace(arg, "/etc/csr-controller-manager/config.yaml", file, 1))
	}
	args = append(args, "--health-probe-bind-address="+addresses[0], "--metrics-bind-address="+addresses[1])
	process, err := u.StartProcess(obj.Name, cmp.Or(obj.Annotations["binary"], u.current.binary), args...)
	if err != nil {
		return err
	}
	u.pods[obj.Name] = &pod{Process: process, probes: addresses[0]}
	return nil
}

// probe writes the result of the pod's readiness probe.
func (u *upgrade) probe(ctx context.Context, obj *corev1.Pod, running *pod) error {
	state := corev1.ConditionTrue
	if running.notReady(ctx) != "" {
		state = corev1.ConditionFalse
	}
	if slices.ContainsFunc(obj.Status.Conditions, func(one corev1.PodCondition) bool { return one.Type == corev1.PodReady && one.Status == state }) {
		return nil
	}
	before := client.MergeFrom(obj.DeepCopy())
	obj.Status.Phase = corev1.PodRunning
	obj.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: state, LastTransitionTime: metav1.Now()}}
	return u.admin.Status().Patch(ctx, obj, before)
}

// notReady returns why the pod is not ready, or "".
func (p *pod) notReady(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	status, text := cluster.Get(ctx, p.probes, "/readyz")
	if status != http.StatusOK {
		return fmt.Sprint(status, " ", text)
	}
	return ""
}

// notReady returns the reasons why pods are not ready.
func (u *upgrade) notReady(ctx context.Context) (all []string) {
	for name, each := range u.pods {
		if why := each.notReady(ctx); why != "" {
			all = append(all, name+": "+why)
		}
	}
	return all
}
