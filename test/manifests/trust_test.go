package manifests

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// The namespaces, and the names of the DaemonSets, of the overlays that write files of API servers.
const (
	trustFiles         = "csr-trust-files"
	authorizationFiles = "csr-authorization-files"
)

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
		checkWriter(t, container, "write-trust")
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

// checkWriter checks that a container runs a command of the manager, and could do no more as root than write to what it mounts.
func checkWriter(t *testing.T, container corev1.Container, command string) {
	t.Helper()
	security := container.SecurityContext
	if !*security.ReadOnlyRootFilesystem || *security.AllowPrivilegeEscalation || security.Privileged != nil ||
		!cmp.Equal(security.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}) {
		t.Errorf("container: %+v", container)
	}
	kit.Check(t, container.Args[0] == command && container.Image == "csr-controller-manager:dev", "runs %s %v", container.Image, container.Args)
}

// TestAuthorizationFiles checks that the API server accepts all of config/overlays/authorization-files, and what its pods could do. The
// static Pod differs in what it gets from the host: its identity, and where it runs.
func TestAuthorizationFiles(t *testing.T) {
	t.Parallel()
	all := kustomize(t, "overlays/authorization-files")
	static := typed[corev1.Pod](t, kustomize(t, "overlays/static-pod/authorization-files/pod"), "Pod")[authorizationFiles].Spec
	pod := typed[appsv1.DaemonSet](t, all, "DaemonSet")[authorizationFiles].Spec.Template.Spec
	kit.Check(t, pod.HostNetwork && !pod.HostPID && !pod.HostIPC && !*pod.EnableServiceLinks && len(pod.Containers) == 1, "pod: %+v", pod)
	kit.Equal(t, "nodes", pod.NodeSelector, map[string]string{"node-role.kubernetes.io/control-plane": ""})
	checkWriter(t, pod.Containers[0], "write-authorization")
	// An API server and the process see the file at the same path.
	kit.Check(t, len(pod.Volumes) == 1 && pod.Volumes[0].HostPath.Path == pod.Containers[0].VolumeMounts[0].MountPath, "volumes: %+v", pod.Volumes)
	const kubeconfig = "/etc/kubernetes/csr-authorization-files.conf"
	last := len(static.Containers[0].Args) - 1
	kit.Check(t, static.Containers[0].Args[last] == "--kubeconfig="+kubeconfig && static.Volumes[1].HostPath.Path == kubeconfig &&
		static.Containers[0].VolumeMounts[1].MountPath == kubeconfig && static.Containers[0].VolumeMounts[1].ReadOnly, "static Pod: %+v", static)
	static.Containers[0].Args, static.Containers[0].VolumeMounts = static.Containers[0].Args[:last], static.Containers[0].VolumeMounts[:1]
	static.Volumes, static.EnableServiceLinks, static.DNSPolicy = static.Volumes[:1], pod.EnableServiceLinks, pod.DNSPolicy
	static.ServiceAccountName, static.NodeSelector, static.Tolerations = pod.ServiceAccountName, pod.NodeSelector, pod.Tolerations
	kit.Equal(t, "static Pod", static, pod)
	accept(t, kustomize(t, "overlays/static-pod/authorization-files/pod"))
	for folder, subject := range map[string]string{
		"overlays/authorization-files":            "ServiceAccount " + authorizationFiles + "/" + authorizationFiles,
		"overlays/static-pod/authorization-files": "User /csr-controller-manager.io:authorization-files",
	} {
		all := kustomize(t, folder)
		accept(t, all)
		rules, bound := rights(t, all)
		const role = "Role " + systemNamespace + "/" + authorizationFiles
		kit.Equal(t, folder+": rights", rules, map[string][]rbacv1.PolicyRule{role: {{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"csr-node-block-list"}, Verbs: []string{"get", "list", "watch"},
		}}})
		kit.Equal(t, folder+": bound to", bound, map[string][]string{role: {subject}})
	}
}

// impersonating returns a configuration of user.
func impersonating(user string, groups ...string) *rest.Config {
	cfg := rest.CopyConfig(shared.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	return cfg
}

// attempt is a write to a real API server. refused is part of the reason, or "" if try must succeed.
type attempt struct {
	what, refused string
	try           func() error
}

// attempts makes them one after the other. The API server knows a new policy or role only after a moment, so the first refused ones are dry
// runs, which admission treats alike.
func attempts(t *testing.T, all ...attempt) {
	t.Helper()
	for _, step := range all {
		kit.Eventually(t, step.what, func(context.Context) error {
			err := step.try()
			if step.refused != "" && apierrors.IsForbidden(err) && strings.Contains(err.Error(), step.refused) || step.refused == "" && err == nil {
				return nil
			}
			return fmt.Errorf("got %w, want it refused with %q", err, step.refused)
		})
	}
}

// daemonSetController creates the Pods of DaemonSets. everyController does that, and all else, of a kube-controller-manager without
// --use-service-account-credentials.
const (
	daemonSetController = "system:serviceaccount:kube-system:daemon-set-controller"
	everyController     = "system:kube-controller-manager"
)

// installGuarded installs all but the DaemonSet until the test ends, and gives the users editor, daemonSetController and everyController, in
// these namespaces, what Kubernetes' role edit gives and more. A controller that does not run here aggregates edit.
func installGuarded(t *testing.T, all objects, namespaces ...string) {
	t.Helper()
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
	grant(t, []string{"editor", daemonSetController, everyController}, rbacv1.PolicyRule{
		APIGroups: []string{"", "apps"}, Resources: []string{"*"},
		Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"},
	}, namespaces...)
}

// grant gives users a right in these namespaces.
func grant(t *testing.T, users []string, rule rbacv1.PolicyRule, namespaces ...string) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: []rbacv1.PolicyRule{rule}}
	kit.NoError(t, admin.Create(t.Context(), role))
	for _, namespace := range namespaces {
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "test-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		}
		for _, user := range users {
			binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
		}
		kit.NoError(t, admin.Create(t.Context(), binding))
	}
}

// ofPods returns the attempts to run something in a namespace whose Pods write files of API servers.
func ofPods(t *testing.T, all objects, namespace, policy string) []attempt {
	t.Helper()
	ctx := t.Context()
	editor, controller := kit.ClientOf(t, impersonating("editor")), kit.ClientOf(t, impersonating(daemonSetController))
	core := impersonating("editor") // client.Client has no call for exec and attach
	core.APIPath, core.GroupVersion, core.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, clientgoscheme.Codecs.WithoutConversion()
	calls := kit.Must(rest.RESTClientFor(core))(t)
	set := typed[appsv1.DaemonSet](t, all, "DaemonSet")[namespace]
	mine := set.DeepCopy()
	mine.Name = "mine"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"}, Spec: set.Spec.Template.Spec}
	called := func(how string) func() error {
		return func() error {
			call := calls.Post().Namespace(namespace).Resource("pods").Name("p").SubResource(how)
			return call.Param("container", pod.Spec.Containers[0].Name).Param("command", "x").Do(ctx).Error()
		}
	}
	owned := pod.DeepCopy()
	owned.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: namespace, UID: "1"}, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	ofOther := pod.DeepCopy()
	ofOther.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "mine", UID: "1"}, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	every := kit.ClientOf(t, impersonating(everyController))
	pods := "only people who may update the ValidatingAdmissionPolicy " + policy
	const image = `[{"op":"replace","path":"%s/containers/0/image","value":"his"}]`
	tries := []attempt{
		{"an editor creates a pod", pods, created(t, editor, pod, client.DryRunAll)},
		{"an editor creates a DaemonSet", pods, created(t, editor, mine, client.DryRunAll)},
		{"an administrator creates the DaemonSet", "", created(t, admin, set)},
		{"an editor changes the DaemonSet", pods, patched(t, editor, set, types.JSONPatchType, fmt.Sprintf(image, "/spec/template/spec"))},
		{"an editor labels the DaemonSet", "", patched(t, editor, set, types.MergePatchType, `{"metadata":{"labels":{"a":"b"}}}`)},
		{"a controller creates the pod of a ReplicaSet", pods, created(t, every, ofOther, client.DryRunAll)},
		{"a controller creates a pod of its own", pods, created(t, every, pod, client.DryRunAll)},
		{"the one controller creates the DaemonSet's pod", "", created(t, every, owned, client.DryRunAll)},
		{"the DaemonSet's controller creates its pod", "", created(t, controller, owned)},
		{"an editor changes a pod's image", pods, patched(t, editor, pod, types.JSONPatchType, fmt.Sprintf(image, "/spec"))},
		{"an editor adds a container to a pod", pods, func() error {
			return editor.SubResource("ephemeralcontainers").Patch(ctx, pod.DeepCopy(), client.RawPatch("application/strategic-merge-patch+json",
				[]byte(`{"spec":{"ephemeralContainers":[{"name":"e","image":"his"}]}}`)))
		}},
		{"an editor runs a command in a pod", pods, called("exec")},
		{"an editor attaches to a pod", pods, called("attach")},
		{"an editor deletes the pod", "", func() error { return editor.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0)) }},
	}
	if pod.Spec.HostNetwork { // these reach what listens on the loopback addresses of the host, and on its others
		forward := attempt{"an editor forwards a port of the pod", pods, called("portforward")}
		tries = slices.Insert(tries, len(tries)-1, forward, attempt{"an editor asks a port by the pod", pods, called("proxy")})
	}
	return tries
}

func created(t *testing.T, c client.Client, obj client.Object, opts ...client.CreateOption) func() error {
	return func() error { return c.Create(t.Context(), obj.DeepCopyObject().(client.Object), opts...) }
}

func patched(t *testing.T, c client.Client, obj client.Object, kind types.PatchType, patch string) func() error {
	return func() error {
		return c.Patch(t.Context(), obj.DeepCopyObject().(client.Object), client.RawPatch(kind, []byte(patch)))
	}
}

// applied writes data to a ConfigMap by server-side apply, as the manager does.
func applied(t *testing.T, c client.Client, obj *corev1.ConfigMap, data string) func() error {
	return func() error {
		apply := corev1apply.ConfigMap(obj.Name, obj.Namespace).WithData(map[string]string{"data": data})
		return c.Apply(t.Context(), apply, client.FieldOwner("csr-controller-manager"), client.ForceOwnership)
	}
}

func configMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{"data": "mine"}}
}

// TestEditOfTrustFilesIsNotRoot installs config/overlays/trust-files and tries, as an editor of its namespace, each
// way to change the file that API servers trust. The manager and the DaemonSet's controller must still work.
func TestEditOfTrustFilesIsNotRoot(t *testing.T) {
	all := kustomize(t, "overlays/trust-files")
	installGuarded(t, all, trustFiles)
	editor, manager := kit.ClientOf(t, impersonating("editor")), kit.ClientOf(t, impersonating(account+common))
	trust := configMap(trustFiles, "csr-trust")
	const files = "only csr-controller-manager writes ConfigMap"
	attempts(t, append([]attempt{
		{"an editor creates the ConfigMap", files, created(t, editor, trust, client.DryRunAll)},
		{"the manager creates the ConfigMap", "", applied(t, manager, trust, "mine")},
		{"an editor changes the ConfigMap", files, patched(t, editor, trust, types.MergePatchType, `{"data":{"ca.crt":"his"}}`)},
		{"the manager changes the ConfigMap", "", applied(t, manager, trust, "ours")},
		{"an editor creates another ConfigMap", "", created(t, editor, configMap(trustFiles, "other"))},
	}, ofPods(t, all, trustFiles, "csr-trust-pods")...)...)
}

// TestEditOfAuthorizationFilesIsNotRoot installs config/overlays/authorization-files and tries, as an editor of its namespace and of the
// manager's, each way to change what API servers refuse. Users with the verb block, the manager and the DaemonSet's controller must still work.
func TestEditOfAuthorizationFilesIsNotRoot(t *testing.T) {
	ctx := t.Context()
	apply(t, overlay(t, "default", "node-block-list", "block-list-enforced"))
	all := kustomize(t, "overlays/authorization-files")
	installGuarded(t, all, authorizationFiles, systemNamespace)
	list, status := configMap(systemNamespace, "csr-node-block-list"), configMap(systemNamespace, "csr-node-block-list-status")
	configMaps := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create", "update", "patch"}}
	grant(t, []string{"blocker"}, configMaps, systemNamespace)
	configMaps.ResourceNames, configMaps.Verbs = []string{list.Name}, []string{"block"}
	grant(t, []string{"blocker"}, configMaps, systemNamespace)
	bind(t, "cluster-admin", "operator of the cluster")
	editor, blocker := kit.ClientOf(t, impersonating("editor")), kit.ClientOf(t, impersonating("blocker"))
	manager, operator := kit.ClientOf(t, impersonating(account+common)), kit.ClientOf(t, impersonating("operator of the cluster"))
	const data, ofList, ofStatus = `{"data":{"data":"his"}}`, "get the verb block on the ConfigMap csr-node-block-list", "csr-node-block-list-status"
	update := func(c client.Client, obj *corev1.ConfigMap) func() error {
		return func() error {
			obj := obj.DeepCopy()
			obj.Data = map[string]string{"data": "updated"}
			return c.Update(ctx, obj)
		}
	}
	deleted := func(c client.Client, obj *corev1.ConfigMap) func() error {
		return func() error { return c.Delete(ctx, obj.DeepCopy()) }
	}
	collection := func(obj *corev1.ConfigMap) func() error {
		return func() error {
			return editor.DeleteAllOf(ctx, obj.DeepCopy(), client.InNamespace(obj.Namespace), client.MatchingFields{"metadata.name": obj.Name})
		}
	}
	other := configMap(systemNamespace, "other")
	attempts(t, append([]attempt{
		{"an editor creates the list", ofList, created(t, editor, list, client.DryRunAll)},
		{"an editor applies the list", ofList, applied(t, editor, list, "his")},
		{"a user with the verb block creates the list", "", created(t, blocker, list)},
		{"an editor updates the list", ofList, update(editor, list)},
		{"an editor patches the list", ofList, patched(t, editor, list, types.MergePatchType, data)},
		{"an editor makes the list immutable", ofList, patched(t, editor, list, types.MergePatchType, `{"immutable":true}`)},
		{"an editor makes the next kubectl apply remove keys", ofList, patched(t, editor, list, types.MergePatchType,
			`{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}}}`)},
		{"an editor gives the list an owner", ofList, patched(t, editor, list, types.MergePatchType,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"1"}]}}`)},
		{"the storage version migrator writes the list as it is", "", func() error {
			read := &corev1.ConfigMap{}
			if err := editor.Get(ctx, client.ObjectKeyFromObject(list), read); err != nil {
				return err
			}
			return editor.Update(ctx, read)
		}},
		{"an editor deletes the list", ofList, deleted(editor, list)},
		{"an editor deletes a collection with the list", ofList, collection(list)},
		{"a user with the verb block updates the list", "", update(blocker, list)},
		{"a user with the verb block patches the list", "", patched(t, blocker, list, types.MergePatchType, data)},
		{"an editor creates the status", ofStatus, created(t, editor, status)},
		{"a user with the verb block on the list creates the status", ofStatus, created(t, blocker, status)},
		{"the manager creates the status", "", applied(t, manager, status, "mine")},
		{"an editor updates the status", ofStatus, update(editor, status)},
		{"an editor patches the status", ofStatus, patched(t, editor, status, types.MergePatchType, data)},
		{"an editor deletes the status", ofStatus, deleted(editor, status)},
		{"an editor deletes a collection with the status", ofStatus, collection(status)},
		{"the manager changes the status", "", applied(t, manager, status, "ours")},
		{"the manager changes the list", `cannot patch resource "configmaps"`, applied(t, manager, list, "ours")},
		{"an editor creates another ConfigMap", "", created(t, editor, other)},
		{"an editor deletes a collection without the list", "", collection(other)},
		{"a cluster-admin patches the list", "", patched(t, operator, list, types.MergePatchType, data)},
		{"a cluster-admin deletes the list", "", deleted(operator, list)},
		{"a cluster-admin creates the list", "", created(t, operator, list)},
		{"a cluster-admin deletes the list again", "", deleted(operator, list)},
		{"a cluster-admin deletes the status", "", deleted(operator, status)},
	}, ofPods(t, all, authorizationFiles, "csr-authorization-pods")...)...)
}

// TestNamespaceWithBlockListEnds checks that the policies that guard the list let its namespace end. The chart installs them for another
// namespace.
func TestNamespaceWithBlockListEnds(t *testing.T) {
	const ends = "csr-ends"
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ends}}
	kit.NoError(t, admin.Create(t.Context(), space))
	all := helm(t, "--namespace="+ends, "--set=authorizationFiles.enabled=true,config.nodeBlockList="+ends+"/list")
	maps.DeleteFunc(all, func(name string, _ *unstructured.Unstructured) bool {
		return !strings.HasSuffix(name, "csr-block-list")
	})
	installGuarded(t, all, ends)
	const namespaceController = "system:serviceaccount:kube-system:namespace-controller"
	controller, list := kit.ClientOf(t, impersonating(namespaceController)), configMap(ends, "list")
	remove := func(opts ...client.DeleteAllOfOption) func() error {
		return func() error {
			return controller.DeleteAllOf(t.Context(), list, append(opts, client.InNamespace(ends))...)
		}
	}
	kit.NoError(t, admin.Create(t.Context(), list))
	attempts(t, attempt{"the namespace controller deletes the list", "get the verb block on the ConfigMap list", remove(client.DryRunAll)})
	kit.NoError(t, admin.Delete(t.Context(), space))
	attempts(t, attempt{"the namespace controller deletes the list of a namespace that ends", "", remove()})
	kit.Check(t, apierrors.IsNotFound(admin.Get(t.Context(), client.ObjectKeyFromObject(list), list)), "the list is left")
}
