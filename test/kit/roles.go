package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// ManagerAccount is the ServiceAccount that config/rbac binds.
const ManagerAccount = "csr-controller-manager"

// SignerAccount is the ServiceAccount of the signer in config/overlays/split.
const SignerAccount = "csr-signer"

// kustomized holds what kubectl kustomize printed for each folder of config.
var kustomized sync.Map

// Rendered returns the objects of a folder of config.
func Rendered(t testing.TB, folder string) (all []*unstructured.Unstructured) {
	t.Helper()
	once, _ := kustomized.LoadOrStore(folder, sync.OnceValues(func() ([]byte, error) {
		render := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "kustomize", filepath.Join("..", "..", "config", folder))
		render.Stderr = os.Stderr
		return render.Output()
	}))
	data, err := once.(func() ([]byte, error))()
	NoError(t, err)
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		obj := &unstructured.Unstructured{}
		if err := documents.Decode(obj); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, obj)
	}
}

// InstallRBAC applies config/rbac.
func InstallRBAC(t testing.TB) {
	t.Helper()
	Apply(t, "rbac")
}

// Apply creates the missing objects of a folder of config. At the end of the test it removes the bindings, because
// the next part of the test may test a right that they grant.
func Apply(t testing.TB, folder string) {
	t.Helper()
	ApplyAll(t, Rendered(t, folder))
}

// ApplyAll is Apply for objects.
func ApplyAll(t testing.TB, all []*unstructured.Unstructured) {
	t.Helper()
	for _, obj := range CreateMissing(t, Admin(t), all) {
		if IsBinding(obj) {
			t.Cleanup(func() {
				if err := client.IgnoreNotFound(Admin(t).Delete(context.Background(), obj)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// CreateMissing creates the objects in all that do not exist, and returns them.
func CreateMissing(t testing.TB, c client.Client, all []*unstructured.Unstructured) (created []*unstructured.Unstructured) {
	t.Helper()
	for _, obj := range all {
		switch err := c.Create(t.Context(), obj); {
		case err == nil:
			created = append(created, obj)
		case !apierrors.IsAlreadyExists(err):
			t.Fatal(err)
		}
	}
	return created
}

// RolesForSecret returns the roles of a signing CA in the Secret called name, bound to holder. They are a copy of those that
// config/rotation/kubelet-serving ships for its Secret, as that folder says, with the trust bundles of all of Kubernetes'
// signers.
func RolesForSecret(t testing.TB, name, holder string) []*unstructured.Unstructured {
	t.Helper()
	all := Renamed(t, Rendered(t, "rotation/kubelet-serving"), "csr-kubelet-serving-ca", name)
	for _, obj := range all {
		rules, _, _ := unstructured.NestedSlice(obj.Object, "rules")
		if obj.GetKind() == "ClusterRole" && len(rules) == 1 {
			var names []any
			for _, signer := range csr.BuiltinSigners() {
				names = append(names, trust.BundleName(signer, name))
			}
			rules[0].(map[string]any)["resourceNames"] = names
			obj.Object["rules"] = rules
		}
	}
	if holder == SignerAccount { // the other binding is for csr-rotation
		all = slices.DeleteFunc(all, func(obj *unstructured.Unstructured) bool {
			return IsBinding(obj) && obj.GetName() == name+"-rotation"
		})
	}
	return BoundTo(t, holder, all)
}

// Renamed returns all, with the text to in the place of from.
func Renamed(t testing.TB, all []*unstructured.Unstructured, from, to string) []*unstructured.Unstructured {
	t.Helper()
	for _, obj := range all {
		data, err := obj.MarshalJSON()
		if err == nil {
			err = obj.UnmarshalJSON(bytes.ReplaceAll(data, []byte(from), []byte(to)))
		}
		NoError(t, err)
	}
	return all
}

// BoundTo makes the ServiceAccount called holder the only subject of each binding in all, and returns all.
func BoundTo(t testing.TB, holder string, all []*unstructured.Unstructured) []*unstructured.Unstructured {
	t.Helper()
	binding, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&rbacv1.RoleBinding{Subjects: []rbacv1.Subject{AccountCalled(holder)}})
	NoError(t, err)
	for _, obj := range all {
		if IsBinding(obj) {
			obj.Object["subjects"] = runtime.DeepCopyJSONValue(binding["subjects"])
		}
	}
	return all
}

// IsBinding reports whether obj is a RoleBinding or a ClusterRoleBinding.
func IsBinding(obj *unstructured.Unstructured) bool {
	return strings.HasSuffix(obj.GetKind(), "RoleBinding")
}

// AccountCalled returns a ServiceAccount in the namespace of the manager.
func AccountCalled(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: SystemNamespace, Name: name}
}

func subjectsOf(t testing.TB, obj *unstructured.Unstructured) []rbacv1.Subject {
	t.Helper()
	binding := rbacv1.ClusterRoleBinding{}
	NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &binding))
	return binding.Subjects
}

// ManagerConfig installs config/rbac and returns the configuration of its ServiceAccount, once its roles are in effect.
func ManagerConfig(t testing.TB) *rest.Config {
	t.Helper()
	InstallRBAC(t)
	cfg := ServiceAccountConfig(t)
	awaitRights(t, cfg, false)
	return cfg
}

// ManagerConfigOn is ManagerConfig for the control plane of cfg, and keeps the bindings. For a manager that rotates it also
// installs config/rotation.
func ManagerConfigOn(t testing.TB, cfg *rest.Config, admin client.Client, rotates bool) *rest.Config {
	t.Helper()
	CreateMissing(t, admin, Rendered(t, "rbac"))
	if rotates {
		CreateMissing(t, admin, Rendered(t, "rotation"))
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: ManagerAccount}}
	cfg = AccountConfig(t, cfg, admin, account)
	awaitRights(t, cfg, rotates)
	return cfg
}

// RoleConfig returns the configuration of the ServiceAccount of one controller. The account has only the roles that
// config/overlays/split binds to it, and those in more folders of config. RoleConfig waits until they are in effect.
func RoleConfig(t testing.TB, controller string, more ...string) *rest.Config {
	t.Helper()
	name := "csr-" + controller
	var all []*unstructured.Unstructured
	for _, folder := range more { // first, so that they are in effect when the others are
		all = append(all, Rendered(t, folder)...)
	}
	for _, obj := range Rendered(t, "overlays/split") {
		switch obj.GetKind() {
		case "Namespace", "ServiceAccount", "ClusterRole", "Role":
			all = append(all, obj)
		case "ClusterRoleBinding", "RoleBinding":
			if slices.Contains(subjectsOf(t, obj), AccountCalled(name)) {
				all = append(all, obj)
			}
		}
	}
	for _, obj := range BoundTo(t, name, all) {
		if IsBinding(obj) {
			obj.SetName(obj.GetName() + "-for-" + name) // config/rbac may be installed too
		}
	}
	ApplyAll(t, all)
	cfg := TokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: name}})
	awaitRights(t, cfg, false, "--controllers="+controller, "--leader-elect-resource-name="+name)
	return cfg
}

// awaitRights waits until the API server grants cfg's user what a manager with StandardArgs and args needs.
func awaitRights(t testing.TB, cfg *rest.Config, rotates bool, args ...string) {
	t.Helper()
	c, err := config.Load(slices.Concat(StandardArgs, args))
	NoError(t, err)
	c.Rotation.Enabled = rotates
	rights := controllers.Rights(c, controllers.LeaseNamespace(c))
	as, err := reviewsv1.NewForConfig(cfg)
	NoError(t, err)
	Eventually(t, "the roles are in effect", func(ctx context.Context) error {
		for _, result := range check.Rights(ctx, as.SelfSubjectAccessReviews(), rights) {
			if result.Status != check.OK {
				return fmt.Errorf("%s: %s", result.Subject, result.Evidence)
			}
		}
		return nil
	})
}
