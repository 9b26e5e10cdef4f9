package manifests

import (
	"context"
	"fmt"
	"strings"
	"testing"

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
	everything := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "trust-everything"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "apps"}, Resources: []string{"*"}, Verbs: []string{"*"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: trustFiles, Name: "trust-everything"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "trust-everything"},
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "editor"},
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:serviceaccount:kube-system:daemon-set-controller"},
		},
	}
	for _, obj := range []client.Object{everything, binding} {
		kit.NoError(t, admin.Create(ctx, obj))
	}
	editor, manager := kit.ClientOf(t, impersonating("editor")), kit.ClientOf(t, impersonating(account+"csr-controller-manager"))
	controller := kit.ClientOf(t, impersonating("system:serviceaccount:kube-system:daemon-set-controller"))
	patched := func(obj client.Object, kind types.PatchType, patch string) func() error {
		return func() error {
			return editor.Patch(ctx, obj.DeepCopyObject().(client.Object), client.RawPatch(kind, []byte(patch)))
		}
	}

	trust := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: trustFiles, Name: "csr-trust"}, Data: map[string]string{"ca.crt": "mine"}}
	refuses(t, "create the ConfigMap", "only csr-controller-manager writes ConfigMap csr-trust", func() error { return editor.Create(ctx, trust.DeepCopy(), client.DryRunAll) })
	applied := func(bundle string) func() error {
		return func() error {
			apply := corev1apply.ConfigMap(trust.Name, trust.Namespace).WithData(map[string]string{"ca.crt": bundle})
			return manager.Apply(ctx, apply, client.FieldOwner("csr-controller-manager"), client.ForceOwnership)
		}
	}
	settles(t, "the manager creates the ConfigMap", applied("mine"))
	refuses(t, "change the ConfigMap", "only csr-controller-manager", patched(trust, types.MergePatchType, `{"data":{"ca.crt":"his"}}`))
	settles(t, "the manager changes the ConfigMap", applied("ours"))
	other := trust.DeepCopy()
	other.Name = "other"
	settles(t, "an editor creates another ConfigMap", func() error { return editor.Create(ctx, other) })

	const pods = "only people who may update the ValidatingAdmissionPolicy csr-trust-pods"
	set := typed[appsv1.DaemonSet](t, all, "DaemonSet")[trustFiles]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: trustFiles, Name: "p"}, Spec: set.Spec.Template.Spec}
	mine := set.DeepCopy()
	mine.Name = "mine"
	refuses(t, "create a pod", pods, func() error { return editor.Create(ctx, pod.DeepCopy(), client.DryRunAll) })
	refuses(t, "create a DaemonSet", pods, func() error { return editor.Create(ctx, mine.DeepCopy(), client.DryRunAll) })
	settles(t, "an administrator creates the DaemonSet", func() error { return admin.Create(ctx, set.DeepCopy()) })
	refuses(t, "change the DaemonSet", pods, patched(set, types.JSONPatchType, `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"his"}]`))
	settles(t, "an editor labels the DaemonSet", patched(set, types.MergePatchType, `{"metadata":{"labels":{"a":"b"}}}`))
	settles(t, "the DaemonSet's controller creates its pod", func() error { return controller.Create(ctx, pod.DeepCopy()) })
	refuses(t, "change a pod's image", pods, patched(pod, types.JSONPatchType, `[{"op":"replace","path":"/spec/containers/0/image","value":"his"}]`))
	refuses(t, "add a container to a pod", pods, func() error {
		return editor.SubResource("ephemeralcontainers").Patch(ctx, pod.DeepCopy(), client.RawPatch("application/strategic-merge-patch+json",
			[]byte(`{"spec":{"ephemeralContainers":[{"name":"e","image":"his"}]}}`)))
	})
	core := impersonating("editor") // client.Client has no call for exec and attach
	core.APIPath, core.GroupVersion, core.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, clientgoscheme.Codecs.WithoutConversion()
	calls, err := rest.RESTClientFor(core)
	kit.NoError(t, err)
	for _, how := range []string{"exec", "attach"} {
		refuses(t, how, pods, func() error {
			return calls.Post().Namespace(trustFiles).Resource("pods").Name("p").SubResource(how).Param("container", "write-trust").Param("command", "x").Do(ctx).Error()
		})
	}
	settles(t, "an editor deletes the pod", func() error { return editor.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0)) })
}

// refuses waits until try is refused for why. The API server knows a new policy or role only after a moment. So try
// makes a dry run first, which admission treats alike.
func refuses(t *testing.T, what, why string, try func() error) {
	t.Helper()
	kit.Eventually(t, "an editor may not "+what, func(context.Context) error {
		if err := try(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
			return fmt.Errorf("got %w, want it refused with %q", err, why)
		}
		return nil
	})
}

// settles waits until try succeeds.
func settles(t *testing.T, what string, try func() error) {
	t.Helper()
	kit.Eventually(t, what, func(context.Context) error { return try() })
}
