package manifests

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	for name, binding := range typed[rbacv1.RoleBinding](t, all, "RoleBinding") {
		for _, subject := range binding.Subjects {
			if subject.Name == trustFiles {
				t.Errorf("%s: the pods get rights", name)
			}
		}
	}
	if len(typed[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding")) > 0 {
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
	roles, first := typed[rbacv1.Role](t, other, "Role"), typed[rbacv1.Role](t, overlay(t, "default", "rotation"), "Role")
	bindings := typed[rbacv1.RoleBinding](t, other, "RoleBinding")
	for name, want := range map[string][]rbacv1.PolicyRule{
		"csr-kubelet-serving-ca":          append(first["csr-signing-secret"].Rules, first["csr-ledger"].Rules...),
		"csr-kubelet-serving-ca-rotation": rulesOfRotation(t),
	} {
		rules := roles[name].Rules
		for i := range rules {
			for j, each := range rules[i].ResourceNames {
				rules[i].ResourceNames[j] = strings.Replace(each, "csr-kubelet-serving-ca", "csr-signer", 1)
			}
		}
		if diff := cmp.Diff(want, rules); diff != "" {
			t.Errorf("%s (-csr-signer's +its):\n%s", name, diff)
		}
		if one := bindings[name]; one.RoleRef.Name != name || len(one.Subjects) != 1 || one.Subjects[0].Name != "csr-controller-manager" {
			t.Errorf("%s: %+v", name, one)
		}
	}
}

// rulesOfRotation returns the rules in the manager's namespace that name objects.
func rulesOfRotation(t *testing.T) (named []rbacv1.PolicyRule) {
	t.Helper()
	for _, obj := range kustomize(t, "rotation") {
		if obj.GetKind() != "Role" || obj.GetName() != "csr-rotation" || obj.GetNamespace() != systemNamespace {
			continue
		}
		for _, rule := range typed[rbacv1.Role](t, objects{"": obj}, "Role")["csr-rotation"].Rules {
			if len(rule.ResourceNames) > 0 {
				named = append(named, rule)
			}
		}
	}
	return named
}

// TestRotationAccepted checks that the API server accepts the objects for rotation.
func TestRotationAccepted(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"rotation", "rotation/admission"} {
		accept(t, kustomize(t, folder))
	}
}

// rotationQuestions name the permitted identities: the controller, an operator, and the users of roles that are
// aggregated into admin or view.
var rotationQuestions = []question{
	{"watch", "csr-controller-manager.io", "signingauthorities", "", "", []string{"controller", "operator", "admin", "view"}},
	{"patch", "csr-controller-manager.io", "signingauthorities", "", "", []string{"controller", "operator", "admin"}},
	{"update", "csr-controller-manager.io", "signingauthorities/status", "", "", []string{"controller"}},
	{"patch", "csr-controller-manager.io", "signingauthorities/status", "", "", nil},
	{"create", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"delete", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"update", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"update", "", "secrets", systemNamespace, "csr-signer", []string{"controller"}},
	{"delete", "", "secrets", systemNamespace, "csr-signer", nil},
	{"get", "", "secrets", systemNamespace, "other", nil},
	{"get", "", "secrets", "kube-system", "csr-signer", nil},
	{"get", "", "configmaps", systemNamespace, "csr-signer-nodes-0f", []string{"controller", "operator"}},
	{"update", "", "configmaps", systemNamespace, "csr-signer-nodes-0f", []string{"controller"}},
	{"update", "", "configmaps", systemNamespace, "csr-signer-ledger", []string{"controller"}},
	{"patch", "", "configmaps", systemNamespace, "csr-trust", []string{"controller"}},
	{"update", "", "configmaps", systemNamespace, "csr-trust", nil},
	{"update", "", "configmaps", systemNamespace, "other", nil},
	{"update", "", "configmaps", "kube-system", "extension-apiserver-authentication", []string{"controller"}},
	{"update", "", "configmaps", "kube-system", "kubeadm-config", nil},
	{"patch", "certificates.k8s.io", "clustertrustbundles", "", "kubernetes.io:kubelet-serving:csr-signer", []string{"controller"}},
	{"create", "certificates.k8s.io", "clustertrustbundles", "", "kubernetes.io:kubelet-serving:csr-signer", []string{"controller"}},
	{"patch", "certificates.k8s.io", "clustertrustbundles", "", "kubernetes.io:kubelet-serving:other", nil},
	{"create", "certificates.k8s.io", "clustertrustbundles", "", "", nil},
	{"attest", "certificates.k8s.io", "signers", "", kubelet, []string{"controller"}},
	{"attest", "certificates.k8s.io", "signers", "", "example.com/web", nil},
	{"list", "", "nodes", "", "", []string{"operator"}},
	{"list", "apiregistration.k8s.io", "apiservices", "", "", nil},
	{"list", "", "events", "default", "", nil},
	{"*", "*", "*", "", "", nil},
}

// TestRotationRights installs the component for its own identity, and checks the rights that it grants.
func TestRotationRights(t *testing.T) {
	all := kustomize(t, "rotation")
	const account = "csr-rotation"
	for _, obj := range all {
		if subjects, found := obj.Object["subjects"].([]any); found {
			subjects[0].(map[string]any)["name"] = account
		}
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}
	if err := admin.Create(t.Context(), space); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	apply(t, all)
	for user, role := range map[string]string{"operator": "csr-rotation-operator", "admin": "csr-signing-authorities-operate", "view": "csr-signing-authorities-view"} {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "rotation-" + user},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "rotation-" + user}},
		}
		if err := admin.Create(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
	}
	// kube-controller-manager, which does not run here, aggregates these roles.
	for name, label := range map[string]string{"csr-signing-authorities-operate": "admin", "csr-signing-authorities-view": "view"} {
		want := map[string]string{"rbac.authorization.k8s.io/aggregate-to-" + label: "true"}
		if diff := cmp.Diff(want, all["ClusterRole /"+name].GetLabels()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	ask(t, rotationQuestions, map[string][]string{
		"system:serviceaccount:" + systemNamespace + ":" + account: {"controller"},
		"rotation-operator": {"operator"}, "rotation-admin": {"admin"}, "rotation-view": {"view"},
	})
}
