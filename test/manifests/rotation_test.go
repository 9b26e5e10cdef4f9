package manifests

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

const trustFiles = "csr-trust-files"

// TestTrustFiles checks that the API server accepts all of config/overlays/trust-files, and what its pods could do.
func TestTrustFiles(t *testing.T) {
	t.Parallel()
	all := kustomize(t, "overlays/trust-files")
	accept(t, all)
	set := typed[appsv1.DaemonSet](t, all, "DaemonSet")[trustFiles]
	pod := set.Spec.Template.Spec
	if pod.HostNetwork || pod.HostPID || pod.HostIPC || *pod.AutomountServiceAccountToken || *pod.EnableServiceLinks {
		t.Errorf("pod: %+v", pod)
	}
	if diff := cmp.Diff(map[string]string{"node-role.kubernetes.io/control-plane": ""}, pod.NodeSelector); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	container := pod.Containers[0]
	security := container.SecurityContext
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 || !*security.ReadOnlyRootFilesystem || *security.AllowPrivilegeEscalation ||
		security.Privileged != nil || !cmp.Equal(security.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}) {
		t.Errorf("container: %+v", container)
	}
	if container.Args[0] != "write-trust" || container.Image != "csr-controller-manager:dev" {
		t.Errorf("runs %s %v", container.Image, container.Args)
	}
	hosts := 0
	for i, volume := range pod.Volumes {
		mount := container.VolumeMounts[i]
		if volume.HostPath != nil {
			hosts++
		}
		if volume.Name != mount.Name || mount.ReadOnly == (volume.HostPath != nil) {
			t.Errorf("volume %+v, mount %+v", volume, mount)
		}
	}
	if hosts != 1 {
		t.Errorf("%d paths of the host", hosts)
	}
	if slices.Contains(subjects(t, all), trustFiles) {
		t.Error("the pods get rights")
	}
	if len(objectsOf(all, "ClusterRoleBinding")) > 0 {
		t.Error("there is a right in the whole cluster")
	}
}

// TestSecondTrustFile checks that the component's container has no more rights than the first container, and writes
// another file of both keys.
func TestSecondTrustFile(t *testing.T) {
	t.Parallel()
	pod := typed[appsv1.DaemonSet](t, overlay(t, "overlays/trust-files", "overlays/trust-files/kubelet-serving"), "DaemonSet")[trustFiles].Spec.Template.Spec
	if len(pod.Containers) != 2 || pod.Containers[0].Name != "write-trust" {
		t.Fatalf("containers: %+v", pod.Containers)
	}
	first, second := pod.Containers[0], pod.Containers[1]
	args := []string{"write-trust", "--from=/published/kubelet-serving.crt", "--to=/kept/kubelet-serving-ca.crt", "--also=/published/ca.crt"}
	if diff := cmp.Diff(args, second.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	second.Name, second.Args = first.Name, first.Args
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("beside name and arguments (-first +second):\n%s", diff)
	}
	items := []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}, {Key: "kubelet-serving.crt", Path: "kubelet-serving.crt"}}
	if diff := cmp.Diff(items, pod.Volumes[0].ConfigMap.Items); diff != "" {
		t.Errorf("items (-want +got):\n%s", diff)
	}
}

// TestSecondAuthority checks that its roles are those of config/rotation and the signer, for another Secret.
func TestSecondAuthority(t *testing.T) {
	t.Parallel()
	other := kustomize(t, "rotation/kubelet-serving")
	accept(t, other)
	rules, bound := rights(t, other)
	first := rulesOf(t, overlay(t, "default", "rotation"))
	const role, its = "Role " + systemNamespace + "/", "csr-kubelet-serving-ca"
	for name, want := range map[string][]rbacv1.PolicyRule{
		its:               append(first[role+"csr-signing-secret"], first[role+"csr-ledger"]...),
		its + "-rotation": slices.DeleteFunc(first[role+"csr-rotation"], func(rule rbacv1.PolicyRule) bool { return len(rule.ResourceNames) == 0 }),
	} {
		for _, rule := range rules[role+name] {
			for i, each := range rule.ResourceNames {
				rule.ResourceNames[i] = strings.Replace(each, its, "csr-signer", 1)
			}
		}
		if diff := cmp.Diff(want, rules[role+name]); diff != "" || !cmp.Equal(bound[role+name], []string{"csr-controller-manager"}) {
			t.Errorf("%s: bound to %v (-csr-signer's +its):\n%s", name, bound[role+name], diff)
		}
	}
}
