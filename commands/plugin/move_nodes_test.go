package plugin

import (
	"errors"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// digestOf returns an image by digest.
func digestOf(name string) string {
	return "example.com/" + name + "@sha256:" + strings.Repeat("0a", 32)
}

// managerPod returns a Pod of the manager that an object of kind controls, as the kubelet reports it with image.
func managerPod(name, kind, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: defaultNamespace, Name: name, Labels: map[string]string{"app.kubernetes.io/name": "csr-controller-manager"},
			OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: "a", Controller: new(true)}},
		},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "manager", ImageID: image}}},
	}
}

// movableNode returns a Node that is Ready, unless it is called down.
func movableNode(name, version string, labels ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, label := range labels {
		key, value, _ := strings.Cut(label, "=")
		node.Labels[key] = value
	}
	node.Status.NodeInfo.KubeletVersion = version
	if name != "down" {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	return node
}

// runBy makes user the one whose credential api knows.
func runBy(api *fake.Clientset, user string) {
	api.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: user}}}, nil
	})
}

// TestMovePlan checks which nodes move in which order, and which are left out. Nothing is created without a confirmation.
func TestMovePlan(t *testing.T) {
	const controlPlane = "node-role.kubernetes.io/control-plane="
	nodes := []runtime.Object{
		movableNode("control", "v1.37.2", controlPlane), movableNode("b", "v1.37.2", "rack=1"), movableNode("a", "v1.37.2"), movableNode("new", "v1.37.2"), movableNode("down", "v1.37.2"),
		movableNode("win", "v1.37.2", "kubernetes.io/os=windows"), movableNode("k3s", "v1.37.2+k3s1"), movableNode("rke2", "v1.37.2+rke2r1"), movableNode("k0s", "v1.37.2+k0s"),
		movedNodes(t, candidate().KeyID), managerPod("manager", "ReplicaSet", digestOf("ours")), managerPod("forged", "Node", digestOf("his")),
	}
	for name, test := range map[string]struct {
		args  string
		phase v1alpha1.Phase
		more  runtime.Object
		says  []string // also what the error says
		nodes []string
	}{
		"in order": {"", v1alpha1.Prepared, nil, []string{digestOf("ours"), "you did not confirm it", "one, and when it is back, 1",
			"  left out      down: it is not Ready", "k0s: its kubelet is no service of systemd", "k3s: its kubelet is no service of systemd",
			"rke2: its kubelet is no service of systemd", "win: its kubelet is no service of systemd"}, []string{"a", "b", "control"}},
		"all":             {"--all --max-unavailable=3", v1alpha1.Prepared, nil, []string{"one, and when it is back, 3"}, []string{"a", "b", "new", "control"}},
		"completed, all":  {"--all", v1alpha1.Completed, nil, []string{"you did not confirm it"}, []string{"a", "b", "new", "control"}},
		"completed":       {"", v1alpha1.Completed, nil, []string{"the phase is Completed: nodes move in Prepared"}, nil},
		"preparing":       {"--all", v1alpha1.Preparing, nil, []string{"the phase is Preparing: nodes move in Prepared"}, nil},
		"none at a time":  {"--max-unavailable=0", v1alpha1.Prepared, nil, []string{"--max-unavailable must be 1 or more"}, nil},
		"named":           {"--image=" + digestOf("mine"), v1alpha1.Prepared, nil, []string{digestOf("mine")}, []string{"a", "b", "control"}},
		"a tag":           {"--image=example.com/mine:v1", v1alpha1.Prepared, nil, []string{`the image "example.com/mine:v1" is not named by a digest`}, nil},
		"two images":      {"", v1alpha1.Prepared, managerPod("other", "ReplicaSet", digestOf("next")), []string{"run 2 images: name one with --image"}, nil},
		"another's":       {"", v1alpha1.Prepared, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: moveNamespace}}, []string{"namespace csr-move-nodes is not of this command"}, nil},
		"a wrong cluster": {"--rollout=one", v1alpha1.Prepared, nil, []string{"--rollout needs NAMESPACE/CLUSTER"}, nil},
		"no Cluster API":  {"--rollout=a/one", v1alpha1.Prepared, nil, []string{"list the Machines of a/one: the API server does not serve cluster.x-k8s.io"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			obj, objs := authorityPrepared(), slices.Clone(nodes)
			if obj.Status.Phase = test.phase; test.more != nil {
				objs = append(objs, test.more)
			}
			c, api := clusterOf(t, objs, obj)
			runBy(api, "alice")
			_, aside, err := execute(t, c, "n\n", append([]string{"rotation", "move-nodes"}, strings.Fields(test.args)...)...)
			kit.Require(t, err != nil, "it was not refused")
			contains(t, aside+err.Error(), test.says...)
			_, planned, _ := strings.Cut(aside, "  nodes  ")
			planned, _, _ = strings.Cut(planned, "  at a time")
			kit.Equal(t, "nodes", strings.Join(strings.Fields(planned), " "), strings.Join(test.nodes, " "))
			for _, action := range api.Actions() {
				kit.Check(t, action.GetVerb() != "create" || action.GetResource().Resource == "selfsubjectreviews", "it did %v", action)
			}
		})
	}
}

// TestMoveManifest checks that the Pod has what it needs and no more, and that no name of a user can change the policy.
func TestMoveManifest(t *testing.T) {
	c, api := clusterOf(t, []runtime.Object{movableNode("a", "v1.37.2")}, authorityPrepared())
	const hostile = "mallory\" || true #\n  - x: $IMAGE"
	runBy(api, hostile)
	text, _, err := execute(t, c, "", "rotation", "move-nodes", "--dry-run", "--image="+digestOf("mine"))
	kit.NoError(t, err)
	policy, pod := &admissionv1.ValidatingAdmissionPolicy{}, &corev1.Pod{}
	documents := strings.Split(text, "\n---\n")
	kit.NoError(t, errors.Join(yaml.UnmarshalStrict([]byte(documents[0]), policy), yaml.UnmarshalStrict([]byte(documents[4]), pod)))
	kit.Equal(t, "who", policy.Spec.Validations[0].Expression, `request.userInfo.username == "mallory\" || true #\n  - x: $IMAGE"`)
	kit.Equal(t, "validations", len(policy.Spec.Validations), 2)
	kit.Equal(t, "node", pod.Spec.NodeName, "a")
	kit.Equal(t, "containers", len(pod.Spec.Containers), 1)
	container := pod.Spec.Containers[0]
	kit.Equal(t, "image", container.Image, digestOf("mine"))
	kit.Equal(t, "arguments", container.Args, []string{"renew-kubelet", "--serving=true", "--timeout=5m"})
	security := container.SecurityContext
	kit.Check(t, security.Privileged == nil && !*security.AllowPrivilegeEscalation && *security.ReadOnlyRootFilesystem && security.Capabilities.Drop[0] == "ALL" &&
		len(security.Capabilities.Add) == 0 && !*pod.Spec.AutomountServiceAccountToken, "it has more than it needs: %+v", security)
	for _, mount := range container.VolumeMounts {
		at := slices.IndexFunc(pod.Spec.Volumes, func(one corev1.Volume) bool { return one.Name == mount.Name })
		kit.Check(t, pod.Spec.Volumes[at].HostPath.Path == mount.MountPath && mount.ReadOnly != (mount.Name == "pki"), "%+v", mount)
	}
	kit.Equal(t, "volumes", len(pod.Spec.Volumes), len(container.VolumeMounts))
}
