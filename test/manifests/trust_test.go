package manifests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const trustFiles = "csr-trust-files"

// TestTrustFiles checks that the API server accepts all of config/overlays/trust-files, and what its pods could do. With the component for a
// second file, both containers have the same rights. TestRotationPages checks their arguments.
func TestTrustFiles(t *testing.T) {
	t.Parallel()
	for want, all := range map[int]objects{
		1: kustomize(t, "overlays/trust-files"), 2: overlay(t, "overlays/trust-files", "overlays/trust-files/kubelet-serving"),
	} {
		accept(t, all)
		pod := typed[appsv1.DaemonSet](t, all, "DaemonSet")[trustFiles].Spec.Template.Spec
		kit.Check(t, !pod.HostNetwork && !pod.HostPID && !pod.HostIPC && !*pod.AutomountServiceAccountToken && !*pod.EnableServiceLinks,
			"pod: %+v", pod)
		kit.Equal(t, "nodes", pod.NodeSelector, map[string]string{"node-role.kubernetes.io/control-plane": ""})
		kit.Require(t, len(pod.Containers) == want && len(pod.InitContainers) == 0, "containers: %+v", pod)
		container, last := pod.Containers[0], pod.Containers[want-1]
		last.Name, last.Args = container.Name, container.Args
		kit.Equal(t, "the last container, beside name and arguments", last, container)
		security := container.SecurityContext
		if !*security.ReadOnlyRootFilesystem || *security.AllowPrivilegeEscalation || security.Privileged != nil ||
			!cmp.Equal(security.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}) {
			t.Errorf("container: %+v", container)
		}
		kit.Check(t, container.Args[0] == "write-trust" && container.Image == "csr-controller-manager:dev",
			"runs %s %v", container.Image, container.Args)
		hosts := 0
		for i, volume := range pod.Volumes {
			mount := container.VolumeMounts[i]
			if volume.HostPath != nil {
				hosts++
			}
			kit.Check(t, volume.Name == mount.Name && mount.ReadOnly != (volume.HostPath != nil), "volume %+v, mount %+v", volume, mount)
		}
		kit.Check(t, hosts == 1 && !slices.Contains(subjects(t, all), trustFiles) && len(objectsOf(all, "ClusterRoleBinding")) == 0,
			"%d paths of the host, or rights of the pods or in the whole cluster", hosts)
	}
}

// impersonating returns a configuration of user.
func impersonating(user string, groups ...string) *rest.Config {
	cfg := rest.CopyConfig(shared.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	return cfg
}

// TestEditOfTrustFilesIsNotRoot installs config/overlays/trust-files and tries, as an editor of its namespace, each
// way to change the file that API servers trust. The manager and the DaemonSet's controller must still work.
func TestEditOfTrustFilesIsNotRoot(t *testing.T) {
	ctx := t.Context()
	all := kustomize(t, "overlays/trust-files")
	apply(t, all)
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		policies := objectsOf(all, kind)
		applyAll(t, policies)
		t.Cleanup(func() {
			for _, obj := range policies {
				_ = admin.Delete(context.Background(), obj)
			}
		})
	}
	// A controller that does not run here aggregates edit. This role has more rights than edit, for all users in this
	// test.
	const controllerName = "system:serviceaccount:kube-system:daemon-set-controller"
	everything := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "trust-everything"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "apps"}, Resources: []string{"*"}, Verbs: []string{"*"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: trustFiles, Name: "trust-everything"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "trust-everything"},
	}
	for _, user := range []string{"editor", controllerName} {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
	}
	kit.NoError(t, admin.Create(ctx, everything))
	kit.NoError(t, admin.Create(ctx, binding))
	editor, manager := kit.ClientOf(t, impersonating("editor")), kit.ClientOf(t, impersonating(account+common))
	controller := kit.ClientOf(t, impersonating(controllerName))
	core := impersonating("editor") // client.Client has no call for exec and attach
	core.APIPath, core.GroupVersion, core.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, clientgoscheme.Codecs.WithoutConversion()
	calls := kit.Must(rest.RESTClientFor(core))(t)

	trust := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: trustFiles, Name: "csr-trust"}, Data: map[string]string{"ca.crt": "mine"}}
	other := trust.DeepCopy()
	other.Name = "other"
	set := typed[appsv1.DaemonSet](t, all, "DaemonSet")[trustFiles]
	mine := set.DeepCopy()
	mine.Name = "mine"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: trustFiles, Name: "p"}, Spec: set.Spec.Template.Spec}
	created := func(c client.Client, obj client.Object, opts ...client.CreateOption) func() error {
		return func() error { return c.Create(ctx, obj.DeepCopyObject().(client.Object), opts...) }
	}
	patched := func(obj client.Object, kind types.PatchType, patch string) func() error {
		return func() error {
			return editor.Patch(ctx, obj.DeepCopyObject().(client.Object), client.RawPatch(kind, []byte(patch)))
		}
	}
	applied := func(bundle string) func() error {
		return func() error {
			apply := corev1apply.ConfigMap(trust.Name, trust.Namespace).WithData(map[string]string{"ca.crt": bundle})
			return manager.Apply(ctx, apply, client.FieldOwner("csr-controller-manager"), client.ForceOwnership)
		}
	}
	called := func(how string) func() error {
		return func() error {
			call := calls.Post().Namespace(trustFiles).Resource("pods").Name("p").SubResource(how)
			return call.Param("container", "write-trust").Param("command", "x").Do(ctx).Error()
		}
	}
	const files, pods = "only csr-controller-manager writes ConfigMap", "only people who may update the ValidatingAdmissionPolicy csr-trust-pods"
	const image = `[{"op":"replace","path":"%s/containers/0/image","value":"his"}]`
	// The API server knows a new policy or role only after a moment. So the first attempts are dry runs, which admission treats alike.
	for _, step := range []struct {
		what, refused string // the reason, or "" if try must succeed
		try           func() error
	}{
		{"an editor creates the ConfigMap", files, created(editor, trust, client.DryRunAll)},
		{"the manager creates the ConfigMap", "", applied("mine")},
		{"an editor changes the ConfigMap", "only csr-controller-manager", patched(trust, types.MergePatchType, `{"data":{"ca.crt":"his"}}`)},
		{"the manager changes the ConfigMap", "", applied("ours")},
		{"an editor creates another ConfigMap", "", created(editor, other)},
		{"an editor creates a pod", pods, created(editor, pod, client.DryRunAll)},
		{"an editor creates a DaemonSet", pods, created(editor, mine, client.DryRunAll)},
		{"an administrator creates the DaemonSet", "", created(admin, set)},
		{"an editor changes the DaemonSet", pods, patched(set, types.JSONPatchType, fmt.Sprintf(image, "/spec/template/spec"))},
		{"an editor labels the DaemonSet", "", patched(set, types.MergePatchType, `{"metadata":{"labels":{"a":"b"}}}`)},
		{"the DaemonSet's controller creates its pod", "", created(controller, pod)},
		{"an editor changes a pod's image", pods, patched(pod, types.JSONPatchType, fmt.Sprintf(image, "/spec"))},
		{"an editor adds a container to a pod", pods, func() error {
			return editor.SubResource("ephemeralcontainers").Patch(ctx, pod.DeepCopy(), client.RawPatch("application/strategic-merge-patch+json",
				[]byte(`{"spec":{"ephemeralContainers":[{"name":"e","image":"his"}]}}`)))
		}},
		{"an editor runs a command in a pod", pods, called("exec")},
		{"an editor attaches to a pod", pods, called("attach")},
		{"an editor deletes the pod", "", func() error { return editor.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0)) }},
	} {
		kit.Eventually(t, step.what, func(context.Context) error {
			err := step.try()
			if step.refused != "" && apierrors.IsForbidden(err) && strings.Contains(err.Error(), step.refused) || step.refused == "" && err == nil {
				return nil
			}
			return fmt.Errorf("got %w, want it refused with %q", err, step.refused)
		})
	}
}
