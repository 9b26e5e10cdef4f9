package rotation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	refusedPatch = "to patch it is for the annotation " + v1alpha1.OperationAnnotation + " alone"
	setOperation = `{"metadata":{"annotations":{"` + v1alpha1.OperationAnnotation + `":"start"}}}`
	publishMine  = `{"spec":{"trust":{"configMaps":[{"namespace":"default","name":"mine"}]}}}`
)

// installRotation applies config/rotation, and returns a client for its objects.
func installRotation(t *testing.T) client.Client {
	t.Helper()
	api := kit.Admin(t)
	kit.InstallRBAC(t)
	kit.Apply(t, "rotation")
	return api
}

// patches are attempts of one user on one authority.
type patches struct {
	obj *v1alpha1.SigningAuthority
	as  client.Client
}

// patchesOf returns the patches of the user with that configuration.
func patchesOf(t *testing.T, obj *v1alpha1.SigningAuthority, config *rest.Config, scheme *runtime.Scheme) patches {
	t.Helper()
	as, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return patches{obj, as}
}

func userConfig(t *testing.T, user string) *rest.Config {
	config := rest.CopyConfig(kit.ControlPlane(t).Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	return config
}

func (p patches) merge(ctx context.Context, patch string) error {
	return p.as.Patch(ctx, p.obj.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
}

func (p patches) json(ctx context.Context, patch string) error {
	return p.as.Patch(ctx, p.obj.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte(patch)), client.DryRunAll)
}

// serverSide applies fields to the object of that name.
func (p patches) serverSide(ctx context.Context, name, fields string) error {
	patch := fmt.Sprintf(`{"apiVersion":%q,"kind":"SigningAuthority",%s`, v1alpha1.GroupVersion, strings.TrimPrefix(fields, "{"))
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return p.as.Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, []byte(patch)), client.DryRunAll, client.ForceOwnership, client.FieldOwner("test"))
}

// TestRotationAdmissionOfPatches checks that a user with an operator's role can't change more than the annotation,
// with any kind of patch.
func TestRotationAdmissionOfPatches(t *testing.T) {
	kit.Parallel(t)
	api := installRotation(t)
	kit.Grant(t, "rotation-patcher", "csr-rotation-operator")
	obj := newAuthority(t, api, "rotation-patch", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed})
	change := func(ctx context.Context, patch string) error {
		return api.Patch(ctx, obj, client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	operation := `"` + v1alpha1.OperationAnnotation + `":"confirm"`
	if err := change(t.Context(), `{"metadata":{"finalizers":["example.com/kept"],"annotations":{"kept":"a",`+operation+`}}}`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := change(context.Background(), `{"metadata":{"finalizers":null}}`); err != nil {
			t.Error(err)
		}
	})
	p := patchesOf(t, obj, userConfig(t, "rotation-patcher"), api.Scheme())
	p.awaitPolicy(t)
	for what, patch := range map[string]string{
		"who is asked":            `{"spec":{"verification":{"apiServers":["192.0.2.1:443"]}}}`,
		"how long":                `{"spec":{"lifetimes":{"adopted":"1h"}}}`,
		"with an operation":       strings.TrimSuffix(setOperation, "}") + "," + strings.TrimPrefix(publishMine, "{"),
		"an owner, to be deleted": `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"gone","uid":"1"}]}}`,
		"a finalizer":             `{"metadata":{"finalizers":["example.com/kept","example.com/mine"]}}`,
		"no finalizer":            `{"metadata":{"finalizers":null}}`,
		"a label":                 `{"metadata":{"labels":{"app.kubernetes.io/instance":"mine"}}}`,
		"another annotation":      `{"metadata":{"annotations":{"argocd.argoproj.io/tracking-id":"mine"}}}`,
		"changes one":             `{"metadata":{"annotations":{"kept":"b"}}}`,
		"takes one away":          `{"metadata":{"annotations":{"kept":null}}}`,
		"takes all away":          `{"metadata":{"annotations":null}}`,
	} {
		forbidden(t, what, p.merge(t.Context(), patch), true)
	}
	forbidden(t, "JSON patch", p.json(t.Context(), `[{"op":"add","path":"/spec/verification","value":{"apiServers":["192.0.2.1:443"]}}]`), true)
	forbidden(t, "server-side apply", p.serverSide(t.Context(), obj.Name, publishMine), true)
	p.wantOperations(t)
	p.wantRBAC(t)
}

// awaitPolicy waits until the API server knows the policy and the role.
func (p patches) awaitPolicy(t *testing.T) {
	t.Helper()
	kit.Eventually(t, "the policy holds, and the role", func(ctx context.Context) error {
		if err := p.merge(ctx, publishMine); err == nil || !strings.Contains(err.Error(), refusedPatch) {
			return errors.Join(errors.New("want it refused by the policy"), err)
		}
		return nil
	})
}

// forbidden checks that an attempt was refused, by the policy or by RBAC.
func forbidden(t *testing.T, what string, err error, policy bool) {
	t.Helper()
	if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), refusedPatch) != policy {
		t.Errorf("%s: %v, want it forbidden, by the policy: %t", what, err, policy)
	}
}

// wantOperations checks that the annotation can be added, changed and removed.
func (p patches) wantOperations(t *testing.T) {
	t.Helper()
	for what, err := range map[string]error{
		"another operation":       p.merge(t.Context(), setOperation),
		"none":                    p.merge(t.Context(), `{"metadata":{"annotations":{"`+v1alpha1.OperationAnnotation+`":null}}}`),
		"by JSON patch":           p.json(t.Context(), `[{"op":"remove","path":"/metadata/annotations/`+strings.ReplaceAll(v1alpha1.OperationAnnotation, "/", "~1")+`"}]`),
		"by server-side apply":    p.serverSide(t.Context(), p.obj.Name, setOperation),
		"what is there, as it is": p.merge(t.Context(), `{"metadata":{"annotations":{"kept":"a"},"finalizers":["example.com/kept"]}}`),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// wantRBAC checks that RBAC refuses the calls that the policy does not cover.
func (p patches) wantRBAC(t *testing.T) {
	t.Helper()
	const made = `{"metadata":{"name":"rotation-patch-new"},"spec":{"secret":{"namespace":"default","name":"new"},"signers":["example.com/new"]}}`
	status := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Prepared"}}`))
	forbidden(t, "made by server-side apply", p.serverSide(t.Context(), "rotation-patch-new", made), false)
	forbidden(t, "the status", p.as.Status().Patch(t.Context(), p.obj.DeepCopy(), status), false)
	forbidden(t, "replaced", p.as.Update(t.Context(), p.obj.DeepCopy()), false)
	forbidden(t, "deleted", p.as.Delete(t.Context(), p.obj.DeepCopy()), false)
}

// TestRotationAdmissionOfUpdates checks that a user who may also update can make any change, in each way.
func TestRotationAdmissionOfUpdates(t *testing.T) {
	kit.Parallel(t)
	api := installRotation(t)
	const owner = "rotation-owner"
	grantAuthorities(t, owner, "patch", "update")
	obj := newAuthority(t, api, "rotation-update", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed})
	const patcher = "rotation-patcher"
	grantAuthorities(t, patcher, "patch")
	patchesOf(t, obj, userConfig(t, patcher), api.Scheme()).awaitPolicy(t)
	p := patchesOf(t, obj, userConfig(t, owner), api.Scheme())
	kit.Eventually(t, "the role holds", func(ctx context.Context) error { return p.merge(ctx, publishMine) })
	changed := obj.DeepCopy()
	changed.Spec.Verification.APIServers = []string{"192.0.2.1:443"}
	changed.Labels = map[string]string{"a": "b"}
	for what, err := range map[string]error{
		"update":            p.as.Update(t.Context(), changed, client.DryRunAll),
		"label":             p.merge(t.Context(), `{"metadata":{"labels":{"a":"b"}}}`),
		"server-side apply": p.serverSide(t.Context(), obj.Name, publishMine),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestRotationAdmissionOfTheManager checks that the manager's identity can do its own writes, and can't change the
// spec.
func TestRotationAdmissionOfTheManager(t *testing.T) {
	kit.Parallel(t)
	api := installRotation(t)
	obj := newAuthority(t, api, "rotation-manager", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed})
	p := patchesOf(t, obj, kit.ServiceAccountConfig(t), api.Scheme())
	p.awaitPolicy(t)
	patch := client.MergeFrom(obj.DeepCopy())
	metav1.SetMetaDataAnnotation(&obj.ObjectMeta, v1alpha1.OperationAnnotation, string(v1alpha1.OperationStart))
	if err := api.Patch(t.Context(), obj, patch); err != nil {
		t.Fatal(err)
	}
	obj.Status.LastOperation = &v1alpha1.OperationStatus{Name: v1alpha1.OperationStart, Time: metav1.NowMicro(), Result: v1alpha1.Accepted, Annotated: true}
	obj.Spec.Verification.APIServers = []string{"192.0.2.1:443"} // a status write ignores it
	if err := p.as.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	patch = client.MergeFromWithOptions(obj.DeepCopy(), client.MergeFromWithOptimisticLock{})
	delete(obj.Annotations, v1alpha1.OperationAnnotation)
	if err := p.as.Patch(t.Context(), obj, patch); err != nil {
		t.Fatal(err)
	}
	if !obj.Status.Answered() || len(obj.Annotations) > 0 || len(obj.Spec.Verification.APIServers) > 0 {
		t.Errorf("%+v", obj)
	}
}

// grantAuthorities grants user these verbs on every SigningAuthority.
func grantAuthorities(t *testing.T, user string, verbs ...string) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: user}
	for _, obj := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"signingauthorities"}, Verbs: verbs,
		}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		},
	} {
		if err := kit.Admin(t).Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := kit.Admin(t).Delete(context.Background(), obj); err != nil {
				t.Error(err)
			}
		})
	}
}
