package rotation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const (
	moveNamespace = "csr-move-nodes"
	moveImage     = "example.com/csr-controller-manager@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// movable is a control plane with nodes and a SigningAuthority in Prepared. It plays the kubelets, the controller of namespaces, and the
// manager, which notes the nodes that have moved.
type movable struct {
	admin client.WithWatch
	// does says what the Pod of a node does: it succeeds if it is missing.
	does map[string]corev1.PodStatus
	// dead is a node whose kubelet ends no Pod.
	dead string
	// full says that the list of nodes that have moved is full.
	full bool

	mu       sync.Mutex
	started  []string       // nodes, in the order of their Pods
	most     int            // Pods at the same time
	underWay map[string]int // nodes to the rounds since the start of their Pods
}

// startMovable starts nodes and a SigningAuthority. Nodes whose names begin with down are not Ready.
func startMovable(t *testing.T, does map[string]corev1.PodStatus, names ...string) *movable {
	t.Helper()
	kit.InstallRBAC(t)
	kit.Apply(t, "rotation")
	kit.Grant(t, "stranger", "csr-rotation-operator")
	kit.Grant(t, "stranger", "csr-node-mover")
	kit.Grant(t, "joiner", "system:aggregate-to-edit") // no controller aggregates edit here
	kit.GrantRule(t, "joiner", "", "pods/ephemeralcontainers", "patch")
	ca := func(keyID string) *v1alpha1.CAStatus {
		return &v1alpha1.CAStatus{KeyID: keyID, Fingerprint: keyID, NotAfter: metav1.NewTime(time.Now().Add(24 * time.Hour))}
	}
	newAuthority(t, "csr-signer", v1alpha1.SigningAuthorityStatus{
		Phase: v1alpha1.Prepared, Generation: 2, Signing: ca("two"), Retiring: ca("one"),
		Outstanding: []v1alpha1.Outstanding{{Signer: kubeletSigner, Until: metav1.NewTime(time.Now().Add(time.Hour))}},
	})
	m := &movable{admin: kit.Admin(t), does: does, underWay: map[string]int{}}
	for _, name := range names {
		node := kit.NewNode(t, name)
		node.Labels = map[string]string{corev1.LabelOSStable: "linux"}
		if strings.HasPrefix(name, "control") {
			node.Labels["node-role.kubernetes.io/control-plane"] = ""
		}
		kit.NoError(t, m.admin.Update(t.Context(), node))
		status := corev1.ConditionTrue
		if strings.HasPrefix(name, "down") {
			status = corev1.ConditionFalse
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		kit.NoError(t, m.admin.Status().Update(t.Context(), node))
		kit.NoError(t, m.admin.Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &metav1.MicroTime{Time: time.Now()}},
		}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := m.play(ctx); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return m
}

// play takes one round of what the kubelets, the controller of namespaces and the manager do.
func (m *movable) play(ctx context.Context) error {
	namespace := &corev1.Namespace{}
	if err := m.admin.Get(ctx, client.ObjectKey{Name: moveNamespace}, namespace); err != nil {
		return client.IgnoreNotFound(err)
	}
	pods := &corev1.PodList{}
	if err := m.admin.List(ctx, pods, client.InNamespace(moveNamespace)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if namespace.DeletionTimestamp != nil {
		for i := range pods.Items {
			if pods.Items[i].Spec.NodeName == m.dead {
				return nil
			}
			if err := m.admin.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0)); err != nil {
				return err
			}
		}
		if err := m.admin.DeleteAllOf(ctx, &corev1.ServiceAccount{}, client.InNamespace(moveNamespace)); err != nil {
			return err
		}
		namespace.Spec.Finalizers = nil
		return m.admin.SubResource("finalize").Update(ctx, namespace)
	}
	var errs []error
	now := 0
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase != corev1.PodPending && pod.Status.Phase != corev1.PodRunning {
			continue
		}
		now++
		node := pod.Spec.NodeName
		if m.underWay[node]++; m.underWay[node] == 1 {
			m.started = append(m.started, node)
		}
		status, known := m.does[node]
		switch {
		case m.underWay[node] < 10:
		case !known:
			pod.Status.Phase = corev1.PodSucceeded
			errs = append(errs, m.admin.Status().Update(ctx, pod), m.comesBack(ctx, node))
		case status.Phase != "":
			pod.Status = status
			errs = append(errs, m.admin.Status().Update(ctx, pod))
		}
	}
	m.most = max(m.most, now)
	return errors.Join(errs...)
}

// comesBack renews the Lease of node, a little later, and notes that it has moved.
func (m *movable) comesBack(ctx context.Context, node string) error {
	time.Sleep(3 * time.Second) // the command sees the end of the Pod first
	lease := &coordinationv1.Lease{}
	if err := m.admin.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: node}, lease); err != nil {
		return err
	}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-signer-moved"}, Data: map[string]string{"keyID": "two"}}
	err := client.IgnoreAlreadyExists(m.admin.Create(ctx, list))
	patch := fmt.Sprintf(`{"data":{%q:"kube-apiserver-client-kubelet"}}`, node)
	if m.full {
		patch = `{"data":{"isFull":"true"}}`
	}
	return errors.Join(err, m.admin.Update(ctx, lease), m.admin.Patch(ctx, list, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// order returns the nodes in the order in which they began, and how many were under way at most.
func (m *movable) order() ([]string, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.started), m.most
}

// isClean checks that the command has left nothing.
func (m *movable) isClean(t *testing.T) {
	t.Helper()
	output := kit.Kubectl(t, kit.Kubeconfig(t, "clean", kit.ControlPlane(t).Config), "get", "--ignore-not-found", "-o", "name",
		"namespace/"+moveNamespace, "validatingadmissionpolicy/"+moveNamespace, "validatingadmissionpolicybinding/"+moveNamespace)
	kit.Equal(t, "left", output, "")
}

// TestMoveNodes moves five nodes, of which one is down, as an operator with the shipped roles. Meanwhile a user with the role edit in the
// whole cluster, and a controller of workloads, try to run something on the nodes.
func TestMoveNodes(t *testing.T) {
	kit.Parallel(t)
	m := startMovable(t, nil, "control-1", "down-1", "worker-1", "worker-2", "worker-3")
	tried := make(chan struct{})
	go func() {
		defer close(tried)
		m.attack(t)
	}()
	output, code := runRotation(t, "stranger", "move-nodes", "--yes", "--max-unavailable=2", "--image="+moveImage)
	<-tried
	kit.Says(t, output, code, 0, "down-1: it is not Ready", moveImage, "one, and when it is back, 2", "4 moved, 0 under way, 0 left",
		"NODE NOT MOVED YET  LACKS CERTIFICATES OF\ndown-1              kube-apiserver-client-kubelet\n",
		"rotation complete waits for them, unless you run kubectl csr rotation accept csr-signer")
	order, most := m.order()
	kit.Equal(t, "order", order[:1], []string{"worker-1"})
	kit.Equal(t, "order", slices.Sorted(slices.Values(order[1:3])), []string{"worker-2", "worker-3"})
	kit.Equal(t, "order", order[3:], []string{"control-1"})
	kit.Equal(t, "Pods at a time", most, 2)
	m.isClean(t)

	output, code = runRotation(t, "stranger", "move-nodes", "--yes", "--image="+moveImage)
	kit.Says(t, output, code, 0, "down-1: it is not Ready", "nodes         none")
	output, code = runRotation(t, "stranger", "move-nodes", "--all", "--dry-run", "--selector=node-role.kubernetes.io/control-plane", "--image="+moveImage)
	kit.Says(t, output, code, 0, `nodeName: "control-1"`, moveImage, "--serving=false", `request.userInfo.username == "stranger"`)
}

// attack waits until a Pod runs, and tries to run something else on its node, and on others.
func (m *movable) attack(t *testing.T) {
	ctx, pod := t.Context(), &corev1.Pod{}
	kit.Eventually(t, "a Pod runs", func(ctx context.Context) error {
		return m.admin.Get(ctx, client.ObjectKey{Namespace: moveNamespace, Name: "worker-1"}, pod)
	})
	editor := kit.ClientOf(t, kit.TokenConfig(t, "joiner"))
	core := kit.TokenConfig(t, "joiner")
	core.APIPath, core.GroupVersion, core.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, clientgoscheme.Codecs.WithoutConversion()
	calls := kit.Must(rest.RESTClientFor(core))(t)
	mine := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: moveNamespace, Name: "mine"}, Spec: *pod.Spec.DeepCopy()}
	owned := mine.DeepCopy()
	owned.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "mine", UID: "1"}, corev1.SchemeGroupVersion.WithKind("ReplicationController"))}
	called := func(how string) error {
		return calls.Post().Namespace(moveNamespace).Resource("pods").Name("worker-1").SubResource(how).Param("command", "x").Do(ctx).Error()
	}
	patched := func(kind types.PatchType, patch string) error {
		return editor.Patch(ctx, pod.DeepCopy(), client.RawPatch(kind, []byte(patch)))
	}
	for what, err := range map[string]error{
		"create a pod":                  editor.Create(ctx, mine.DeepCopy(), client.DryRunAll),
		"create a pod as an admin":      m.admin.Create(ctx, mine.DeepCopy(), client.DryRunAll),
		"create a pod as a controller":  kit.Impersonate(t, "system:kube-controller-manager", "system:masters").Create(ctx, owned, client.DryRunAll),
		"create a pod as a kubelet":     kit.KubeletOf(t, "worker-1").Create(ctx, m.mirror(t, mine, "worker-1"), client.DryRunAll),
		"ask a port of a service":       calls.Get().Namespace(moveNamespace).Resource("services").Name("mine").SubResource("proxy").Do(ctx).Error(),
		"create the namespace":          m.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: moveNamespace}}, client.DryRunAll),
		"change the image of a pod":     patched(types.JSONPatchType, `[{"op":"replace","path":"/spec/containers/0/image","value":"his"}]`),
		"annotate a pod":                patched(types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`),
		"run a command in a pod":        called("exec"),
		"attach to a pod":               called("attach"),
		"forward a port of a pod":       called("portforward"),
		"ask a port of a pod":           called("proxy"),
		"add a container for debugging": editor.SubResource("ephemeralcontainers").Patch(ctx, pod.DeepCopy(), client.RawPatch("application/strategic-merge-patch+json", []byte(`{"spec":{"ephemeralContainers":[{"name":"e","image":"his"}]}}`))),
	} {
		kit.Check(t, err != nil && strings.Contains(err.Error(), "only the user who runs kubectl csr rotation move-nodes"), "%s: %v", what, err)
	}
}

// mirror returns pod as the kubelet of name creates it for a file.
func (m *movable) mirror(t *testing.T, pod *corev1.Pod, name string) *corev1.Pod {
	node, yes := kit.Get(t, "", name, &corev1.Node{}), true
	pod = pod.DeepCopy()
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID, Controller: &yes}}
	pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = "", ""
	return pod
}

// TestMoveNodesStops checks that the command begins nothing after the first failure, quotes the Pod, and leaves nothing. The node that it
// has moved before is not noted, because the list is full.
func TestMoveNodesStops(t *testing.T) {
	kit.Parallel(t)
	failed := corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "renew-kubelet", Image: moveImage, ImageID: moveImage,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "the kubelet did not\ncome back\x1b[31m"}},
	}}}
	m := startMovable(t, map[string]corev1.PodStatus{"worker-2": failed}, "worker-1", "worker-2", "worker-3")
	m.mu.Lock()
	m.full = true
	m.mu.Unlock()
	output, code := runRotation(t, "stranger", "move-nodes", "--yes", "--image="+moveImage)
	kit.Says(t, output, code, 1, `error: rotation move-nodes: node worker-2: its Pod says: Error: the kubelet did not come back\x1b[31m`, "1 moved, 0 under way, 1 left")
	order, most := m.order()
	kit.Equal(t, "order", order, []string{"worker-1", "worker-2"})
	kit.Equal(t, "Pods at a time", most, 1)
	m.isClean(t)
	for node, keyID := range map[string]string{"worker-1": "", "worker-2": "two"} {
		kit.Equal(t, "the mark of "+node, kit.Get(t, "", node, &corev1.Node{}).Annotations["csr-controller-manager.io/moving-to"], keyID)
	}
	output, code = runRotation(t, "joiner", "move-nodes", "--yes", "--image="+moveImage)
	kit.Says(t, output, code, 1, "error: ")
}

// TestMoveNodesKilled kills the command while a Pod runs. The next run, of another user, removes what is left, and finishes, although a
// kubelet removes no Pod.
func TestMoveNodesKilled(t *testing.T) {
	kit.Parallel(t)
	m := startMovable(t, map[string]corev1.PodStatus{"worker-1": {}}, "worker-1", "worker-2")
	kubeconfig := kit.Kubeconfig(t, "killed", kit.TokenConfig(t, "stranger"))
	command := exec.CommandContext(t.Context(), kit.Must(cluster.Plugin())(t), "rotation", "move-nodes", "--yes", "--image="+moveImage, "--kubeconfig", kubeconfig)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	kit.NoError(t, command.Start())
	kit.Eventually(t, "a Pod runs", func(ctx context.Context) error {
		return m.admin.Get(ctx, client.ObjectKey{Namespace: moveNamespace, Name: "worker-1"}, &corev1.Pod{})
	})
	kit.NoError(t, command.Process.Kill())
	_ = command.Wait()
	m.mu.Lock()
	delete(m.does, "worker-1")
	clear(m.underWay)
	m.dead = "worker-1"
	m.mu.Unlock()
	says, code := kit.RunPlugin(t, kit.ControlPlane(t).Config, "rotation", "move-nodes", "--yes", "--image="+moveImage)
	kit.Says(t, says, code, 0, "2 moved, 0 under way, 0 left", "No node lacks a certificate")
	m.isClean(t)
}

// TestMoveNodesTwice starts the command while another run, which was ended, still removes its namespace. The first run must leave the guard
// of the second one in place, which notices a little later that the namespace is gone.
func TestMoveNodesTwice(t *testing.T) {
	kit.Parallel(t)
	m := startMovable(t, map[string]corev1.PodStatus{"worker-1": {}}, "worker-1")
	m.dead = "worker-1"
	editor, ctx, pod := kit.ClientOf(t, kit.TokenConfig(t, "joiner")), t.Context(), &corev1.Pod{}
	key := client.ObjectKey{Namespace: moveNamespace, Name: "worker-1"}
	kubeconfig := kit.Kubeconfig(t, "twice", kit.TokenConfig(t, "stranger"))
	start := func(output *bytes.Buffer) *exec.Cmd {
		command := exec.CommandContext(ctx, kit.Must(cluster.Plugin())(t), "rotation", "move-nodes", "--yes", "--image="+moveImage, "--kubeconfig", kubeconfig)
		command.Stdout, command.Stderr = output, output
		kit.NoError(t, command.Start())
		return command
	}
	var says, saysSecond bytes.Buffer
	first := start(&says)
	kit.Within(t, time.Minute, "a Pod runs", func(ctx context.Context) error { return m.admin.Get(ctx, key, pod) })
	kit.NoError(t, first.Process.Signal(os.Interrupt))
	second := start(&saysSecond)
	kit.Eventually(t, "the second run has its policy", func(context.Context) error {
		generation := kit.Get(t, "", moveNamespace, &admissionv1.ValidatingAdmissionPolicy{}).Generation
		return kit.OrError(generation > 1, "generation %d", generation)
	})
	time.Sleep(8 * time.Second) // it waits until the policy is in effect, and then for the end of the namespace
	kit.NoError(t, second.Process.Signal(syscall.SIGSTOP))
	m.mu.Lock()
	m.dead = ""
	delete(m.does, "worker-1")
	clear(m.underWay)
	m.mu.Unlock()
	kit.Check(t, first.Wait() != nil, "the first run did not fail")
	kit.NoError(t, second.Process.Signal(syscall.SIGCONT))
	again := &corev1.Pod{}
	kit.Within(t, time.Minute, "the second run starts its Pod", func(ctx context.Context) error {
		err := m.admin.Get(ctx, key, again)
		return kit.OrError(err == nil && again.UID != pod.UID, "%v", err)
	})
	kit.Get(t, "", moveNamespace, &admissionv1.ValidatingAdmissionPolicy{})
	kit.Get(t, "", moveNamespace, &admissionv1.ValidatingAdmissionPolicyBinding{})
	mine := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: moveNamespace, Name: "mine"}, Spec: *again.Spec.DeepCopy()}
	err := editor.Create(ctx, mine, client.DryRunAll)
	kit.Check(t, err != nil && strings.Contains(err.Error(), "only the user who runs"), "%v; the first run says %s", err, says.String())
	kit.Check(t, second.Wait() == nil && strings.Contains(saysSecond.String(), "1 moved, 0 under way, 0 left"), "%s", saysSecond.String())
	m.isClean(t)
}

// TestMoveNodesTakenAccount lets a user with the role edit create the ServiceAccount before the command does.
func TestMoveNodesTakenAccount(t *testing.T) {
	kit.Parallel(t)
	m := startMovable(t, nil, "worker-1")
	editor, ctx := kit.ClientOf(t, kit.TokenConfig(t, "joiner")), t.Context()
	go func() {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			_ = editor.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: moveNamespace, Name: moveNamespace}})
		}
	}()
	output, code := runRotation(t, "stranger", "move-nodes", "--yes", "--image="+moveImage)
	kit.Says(t, output, code, 0, "1 moved, 0 under way, 0 left")
	m.isClean(t)
}

// TestMoveNodesRollout replaces the Machines of one cluster of Cluster API, with the fields of v1beta1 and of v1beta2: those of a control
// plane last. The test plays the controllers. A node of another origin is moved by a Pod. The Machines are in the home cluster, which is
// reached by another kubeconfig.
func TestMoveNodesRollout(t *testing.T) {
	kit.Parallel(t)
	for version, field := range map[string]string{
		"v1beta1": "{rolloutAfter: {type: string, format: date-time}}",
		"v1beta2": "{rollout: {type: object, properties: {after: {type: string, format: date-time}}}}",
	} {
		t.Run(version, func(t *testing.T) {
			kit.Alone(t)
			m := startMovable(t, nil, "control-1", "worker-1", "worker-2")
			kit.InstallKindOf(t, kit.ClusterAPI, version, "Machine", "")
			kit.InstallKindOf(t, kit.ClusterAPI, version, "MachineDeployment", "properties: "+field)
			kit.InstallKindOf(t, "controlplane."+kit.ClusterAPI, version, "KubeadmControlPlane", "properties: "+field)
			const of = "\nmetadata: {namespace: default, name: %s, labels: {cluster.x-k8s.io/cluster-name: one%s}%s}\n"
			api := "apiVersion: cluster.x-k8s.io/" + version + "\nkind: "
			deployment := kit.Put(t, fmt.Sprintf(api+"MachineDeployment"+of+"spec: {}", "workers", "", ""))
			controlPlane := kit.Put(t, fmt.Sprintf("apiVersion: controlplane.cluster.x-k8s.io/"+version+"\nkind: KubeadmControlPlane"+of+"spec: {}", "control", "", ""))
			status := "spec: {}\nstatus: {nodeRef: {name: %s}}"
			worker := kit.Put(t, fmt.Sprintf(api+"Machine"+of+status, "m-1", ", cluster.x-k8s.io/deployment-name: workers", "", "worker-1"))
			control := kit.Put(t, fmt.Sprintf(api+"Machine"+of+status, "m-2", "", ", ownerReferences: [{apiVersion: controlplane.cluster.x-k8s.io/"+
				version+", kind: KubeadmControlPlane, name: control, uid: "+string(controlPlane.GetUID())+", controller: true}]", "control-1"))
			home := kit.Kubeconfig(t, "home", kit.ControlPlane(t).Config)
			output, code := runRotation(t, "stranger", "move-nodes", "--dry-run", "--image="+moveImage, "--home-kubeconfig="+home)
			kit.Says(t, output, code, 0, "--rollout default/one replaces the Machines of some of these nodes instead")

			replaced := make(chan error, 1)
			go func() { replaced <- m.replaces(t, worker, deployment, control, controlPlane) }()
			output, code = runRotation(t, "stranger", "move-nodes", "--yes", "--image="+moveImage, "--home-kubeconfig="+home, "--rollout=default/one")
			kit.Says(t, output, code, 0, "replaced      machinedeployments default/workers, 1 Machines", "kubeadmcontrolplanes default/control, 1 Machines",
				"new hosts of a control plane need the trust file", "1 moved, 0 under way, 0 left", "machinedeployments: 1 of 1 Machines are replaced",
				"kubeadmcontrolplanes: 1 of 1 Machines are replaced")
			kit.NoError(t, <-replaced)
			order, _ := m.order()
			kit.Equal(t, "moved by a Pod", order, []string{"worker-2"})
			output, code = runRotation(t, "stranger", "move-nodes", "--yes", "--image="+moveImage, "--home-kubeconfig="+home, "--rollout=default/none")
			kit.Says(t, output, code, 0, "control-1", "worker-1")
			m.isClean(t)
		})
	}
}

// replaces deletes each Machine once its owner has the field that begins a rollout.
func (m *movable) replaces(t *testing.T, worker, deployment, control, controlPlane *unstructured.Unstructured) error {
	for _, pair := range [][2]*unstructured.Unstructured{{worker, deployment}, {control, controlPlane}} {
		err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 2*kit.Patience, true, func(ctx context.Context) (bool, error) {
			if err := m.admin.Get(ctx, client.ObjectKeyFromObject(pair[1]), pair[1]); err != nil {
				return false, err
			}
			if pair[1] == deployment {
				if err := m.admin.Get(ctx, client.ObjectKeyFromObject(controlPlane), controlPlane); err != nil || begun(controlPlane) {
					return false, fmt.Errorf("the control plane began before the workers were replaced: %w", err)
				}
			}
			return begun(pair[1]), nil
		})
		if err := errors.Join(err, m.admin.Delete(t.Context(), pair[0])); err != nil {
			return err
		}
	}
	return nil
}

// begun reports whether obj has the field that begins a rollout.
func begun(obj *unstructured.Unstructured) bool {
	before, _, _ := unstructured.NestedString(obj.Object, "spec", "rolloutAfter")
	after, _, _ := unstructured.NestedString(obj.Object, "spec", "rollout", "after")
	return before+after != ""
}
