package manifests

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// impersonating returns a client that acts as user.
func impersonating(t *testing.T, user string, groups ...string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(shared.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	as, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return as
}

// TestEditOfTrustFilesIsNotRoot installs config/overlays/trust-files and tries, as an editor of its namespace, each
// way to change the file that API servers trust. The manager and the DaemonSet's controller must still work.
func TestEditOfTrustFilesIsNotRoot(t *testing.T) {
	ctx := t.Context()
	all := kustomize(t, "overlays/trust-files")
	apply(t, all)
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		for name, obj := range all {
			if obj.GetKind() != kind {
				continue
			}
			if err := admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			t.Cleanup(func() { _ = admin.Delete(context.Background(), obj) })
		}
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
		if err := admin.Create(ctx, obj); err != nil {
			t.Fatal(err)
		}
	}
	editor := impersonating(t, "editor")
	manager := impersonating(t, "system:serviceaccount:csr-controller-manager-system:csr-controller-manager")
	controller := impersonating(t, "system:serviceaccount:kube-system:daemon-set-controller")

	trust := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: trustFiles, Name: "csr-trust"}, Data: map[string]string{"ca.crt": "mine"}}
	refuses(t, "create the ConfigMap", "only csr-controller-manager writes ConfigMap csr-trust", func() error { return editor.Create(ctx, trust.DeepCopy(), client.DryRunAll) })
	applied := func(bundle string) func() error {
		return func() error {
			apply := corev1apply.ConfigMap(trust.Name, trust.Namespace).WithData(map[string]string{"ca.crt": bundle})
			return manager.Apply(ctx, apply, client.FieldOwner("csr-controller-manager"), client.ForceOwnership)
		}
	}
	settles(t, "the manager creates the ConfigMap", applied("mine"))
	refuses(t, "change the ConfigMap", "only csr-controller-manager", func() error {
		return editor.Patch(ctx, trust.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"data":{"ca.crt":"his"}}`)))
	})
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
	refuses(t, "change the DaemonSet", pods, func() error {
		return editor.Patch(ctx, set.DeepCopy(), client.RawPatch("application/json-patch+json",
			[]byte(`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"his"}]`)))
	})
	settles(t, "an editor labels the DaemonSet", func() error {
		return editor.Patch(ctx, set.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`)))
	})
	settles(t, "the DaemonSet's controller creates its pod", func() error { return controller.Create(ctx, pod.DeepCopy()) })
	refuses(t, "change a pod's image", pods, func() error {
		return editor.Patch(ctx, pod.DeepCopy(), client.RawPatch("application/json-patch+json",
			[]byte(`[{"op":"replace","path":"/spec/containers/0/image","value":"his"}]`)))
	})
	refuses(t, "add a container to a pod", pods, func() error {
		return editor.SubResource("ephemeralcontainers").Patch(ctx, pod.DeepCopy(), client.RawPatch("application/strategic-merge-patch+json",
			[]byte(`{"spec":{"ephemeralContainers":[{"name":"e","image":"his"}]}}`)))
	})
	for _, how := range []string{"exec", "attach"} {
		refuses(t, how, pods, func() error {
			return restOf(t, "editor").Post().Namespace(trustFiles).Resource("pods").Name("p").SubResource(how).
				Param("container", "write-trust").Param("command", "x").Do(ctx).Error()
		})
	}
	settles(t, "an editor deletes the pod", func() error { return editor.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0)) })
}

// restOf returns a client of the core API for calls that client.Client does not support.
func restOf(t *testing.T, user string) *rest.RESTClient {
	t.Helper()
	cfg := rest.CopyConfig(shared.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	cfg.APIPath, cfg.GroupVersion, cfg.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, clientgoscheme.Codecs.WithoutConversion()
	as, err := rest.RESTClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return as
}

// refuses waits until try is refused for why. The API server knows a new policy or role only after a moment. So try
// makes a dry run first, which admission treats alike.
func refuses(t *testing.T, what, why string, try func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		last = try()
		return apierrors.IsForbidden(last) && strings.Contains(last.Error(), why), nil
	})
	if err != nil {
		t.Errorf("an editor may %s: got %v, want it refused with %q", what, last, why)
	}
}

// settles waits until try succeeds.
func settles(t *testing.T, what string, try func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}
