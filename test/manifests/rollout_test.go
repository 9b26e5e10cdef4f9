package manifests

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestRollout changes the pods of overlays/control-plane under the real Deployment controller, on control planes of
// one and two nodes. The test acts as the scheduler and the kubelets: a pod runs on a node without another pod.
func TestRollout(t *testing.T) {
	t.Parallel()
	startDeploymentController(t, shared)
	one := intstr.FromInt32(1)
	for name, test := range map[string]struct {
		nodes          int
		maxUnavailable *intstr.IntOrString // instead of the shipped value
	}{
		"one node":              {nodes: 1},
		"two nodes":             {nodes: 2},
		"two nodes, one by one": {nodes: 2, maxUnavailable: &one},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "rollout-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}
			kit.NoError(t, admin.Create(t.Context(), space))
			deployment := typed[appsv1.Deployment](t, kustomize(t, "overlays/control-plane"), "Deployment")["csr-controller-manager"]
			deployment.Namespace = space.Name
			if test.maxUnavailable != nil {
				deployment.Spec.Strategy.RollingUpdate.MaxUnavailable = test.maxUnavailable
			}
			p := &plane{namespace: space.Name, nodes: test.nodes}
			kit.NoError(t, admin.Create(t.Context(), deployment))
			p.awaitAll(t, "")
			p.fewest = test.nodes
			before := deployment.DeepCopy()
			deployment.Spec.Template.Annotations[release] = "2"
			kit.NoError(t, admin.Patch(t.Context(), deployment, client.MergeFrom(before)))
			p.awaitAll(t, "2")
			if test.maxUnavailable != nil && p.fewest < 1 {
				t.Error("one by one, and yet there was a moment without a pod")
			}
		})
	}
}

// release is an annotation that changes with each rollout.
const release = "release"

// startDeploymentController starts kube-controller-manager with its controllers of Deployments, and with more.
func startDeploymentController(t *testing.T, c *cluster.Cluster, more ...string) {
	t.Helper()
	controllers := append([]string{"deployment-controller", "replicaset-controller"}, more...)
	kubeconfig, err := c.WriteKubeconfig("rollout", c.Config)
	kit.NoError(t, err)
	p, err := c.StartProcess("rollout", os.Getenv("KUBE_CONTROLLER_MANAGER"), "--kubeconfig", kubeconfig,
		"--controllers="+strings.Join(controllers, ","), "--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=false")
	kit.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of kube-controller-manager:\n%s", p.Tail(30))
		}
		p.Kill()
	})
}

// plane is a control plane with room for one pod on each node.
type plane struct {
	namespace string
	nodes     int
	// fewest is the smallest number of pods that ran at any time.
	fewest int
}

// awaitAll waits until every node has a pod of the release, and no other.
func (p *plane) awaitAll(t *testing.T, wanted string) {
	t.Helper()
	kit.Eventually(t, "the pods of release "+wanted, func(ctx context.Context) error {
		running, err := p.work(ctx)
		if err != nil {
			return err
		}
		p.fewest = min(p.fewest, len(running))
		if want := slices.Repeat([]string{wanted}, p.nodes); !slices.Equal(running, want) {
			return fmt.Errorf("the pods that run are of %q, want %q", running, want)
		}
		return nil
	})
}

// work ends pods that are being deleted, starts others where there is room, and returns the releases of the running
// pods.
func (p *plane) work(ctx context.Context) ([]string, error) {
	pods := &corev1.PodList{}
	if err := admin.List(ctx, pods, client.InNamespace(p.namespace)); err != nil {
		return nil, err
	}
	free := sets.New[string]()
	for i := range p.nodes {
		free.Insert(fmt.Sprint("node-", i))
	}
	var running []string
	for _, pod := range pods.Items {
		switch {
		case pod.DeletionTimestamp != nil:
			free.Delete(pod.Spec.NodeName) // until the next call
			if err := admin.Delete(ctx, &pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
				return nil, err
			}
		case pod.Spec.NodeName != "":
			free.Delete(pod.Spec.NodeName)
			running = append(running, pod.Annotations[release])
		}
	}
	for _, pod := range pods.Items {
		node, ok := free.PopAny()
		if !ok {
			break
		}
		if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			free.Insert(node)
		} else if err := runOn(ctx, node, &pod); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) { // or it is being deleted
			return nil, err
		}
	}
	return running, nil
}

func runOn(ctx context.Context, node string, pod *corev1.Pod) error {
	if err := admin.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}); err != nil {
		return err
	}
	ready := client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	return admin.Status().Patch(ctx, pod, ready)
}
