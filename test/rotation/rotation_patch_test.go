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
	kit.InstallRBAC(t)
	kit.Apply(t, "rotation")
	return kit.Admin(t)
}

// patches are attempts of one user on one authority, in a dry run.
type patches struct {
	obj *v1alpha1.SigningAuthority
	as  client.Client
}

// patch patches the authority. Server-side apply gets the fields without the type of the object.
func (p patches) patch(ctx context.Context, kind types.PatchType, patch string) error {
	obj, options := p.obj.DeepCopy(), []client.PatchOption{client.DryRunAll}
	if kind == types.ApplyPatchType {
		patch = fmt.Sprintf(`{"apiVersion":%q,"kind":"SigningAuthority",%s`, v1alpha1.GroupVersion, strings.TrimPrefix(patch, "{"))
		obj, options = &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: obj.Name}}, append(options, client.ForceOwnership, client.FieldOwner("test"))
	}
	return p.as.Patch(ctx, obj, client.RawPatch(kind, []byte(patch)), options...)
}

// TestRotationAdmissionOfPatches checks that an operator, and the manager, can't change more than the annotation, with
// any kind of patch, and that a user who may also update can make any change.
func TestRotationAdmissionOfPatches(t *testing.T) {
	kit.Parallel(t)
	api := installRotation(t)
	const operator, owner = "rotation-patcher", "rotation-owner"
	kit.Grant(t, operator, "csr-rotation-operator")
	kit.Create(t, api, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: owner}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"signingauthorities"}, Verbs: []string{"patch", "update"},
	}}})
	kit.Grant(t, owner, owner)
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
	as := func(config *rest.Config, user string) patches {
		config = rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		c, err := client.New(config, client.Options{Scheme: kit.Scheme})
		if err != nil {
			t.Fatal(err)
		}
		return patches{obj, c}
	}
	admin := kit.ControlPlane(t).Config
	p, manager, updates := as(admin, operator), as(kit.ServiceAccountConfig(t), ""), as(admin, owner)
	kit.Eventually(t, "the policy holds, and the roles", func(ctx context.Context) error {
		for _, one := range []patches{p, manager} {
			if err := one.patch(ctx, types.MergePatchType, publishMine); err == nil || !strings.Contains(err.Error(), refusedPatch) {
				return errors.Join(errors.New("want it refused by the policy"), err)
			}
		}
		return updates.patch(ctx, types.MergePatchType, publishMine)
	})
	const merge, jsonPatch, apply = types.MergePatchType, types.JSONPatchType, types.ApplyPatchType
	for what, test := range map[string]struct {
		kind  types.PatchType
		patch string
	}{
		"who is asked":            {merge, `{"spec":{"verification":{"apiServers":["192.0.2.1:443"]}}}`},
		"how long":                {merge, `{"spec":{"lifetimes":{"adopted":"1h"}}}`},
		"with an operation":       {merge, strings.TrimSuffix(setOperation, "}") + "," + strings.TrimPrefix(publishMine, "{")},
		"an owner, to be deleted": {merge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"gone","uid":"1"}]}}`},
		"a finalizer":             {merge, `{"metadata":{"finalizers":["example.com/kept","example.com/mine"]}}`},
		"no finalizer":            {merge, `{"metadata":{"finalizers":null}}`},
		"a label":                 {merge, `{"metadata":{"labels":{"app.kubernetes.io/instance":"mine"}}}`},
		"another annotation":      {merge, `{"metadata":{"annotations":{"argocd.argoproj.io/tracking-id":"mine"}}}`},
		"changes one":             {merge, `{"metadata":{"annotations":{"kept":"b"}}}`},
		"takes one away":          {merge, `{"metadata":{"annotations":{"kept":null}}}`},
		"takes all away":          {merge, `{"metadata":{"annotations":null}}`},
		"JSON patch":              {jsonPatch, `[{"op":"add","path":"/spec/verification","value":{"apiServers":["192.0.2.1:443"]}}]`},
		"server-side apply":       {apply, publishMine},
	} {
		forbidden(t, what, p.patch(t.Context(), test.kind, test.patch), true)
		forbidden(t, what+" by the manager", manager.patch(t.Context(), test.kind, test.patch), true)
		if err := updates.patch(t.Context(), test.kind, test.patch); err != nil {
			t.Errorf("%s by an owner: %v", what, err)
		}
	}
	// The annotation can be added, changed and removed.
	for what, test := range map[string]struct {
		kind  types.PatchType
		patch string
	}{
		"another operation":       {merge, setOperation},
		"none":                    {merge, `{"metadata":{"annotations":{"` + v1alpha1.OperationAnnotation + `":null}}}`},
		"by JSON patch":           {jsonPatch, `[{"op":"remove","path":"/metadata/annotations/` + strings.ReplaceAll(v1alpha1.OperationAnnotation, "/", "~1") + `"}]`},
		"by server-side apply":    {apply, setOperation},
		"what is there, as it is": {merge, `{"metadata":{"annotations":{"kept":"a"},"finalizers":["example.com/kept"]}}`},
	} {
		if err := p.patch(t.Context(), test.kind, test.patch); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	// RBAC refuses the calls that the policy does not cover.
	made := patches{&v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: "rotation-patch-new"}}, p.as}
	status := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Prepared"}}`))
	forbidden(t, "made by server-side apply", made.patch(t.Context(), apply, `{"metadata":{"name":"rotation-patch-new"},"spec":{"secret":{"namespace":"default","name":"new"},"signers":["example.com/new"]}}`), false)
	forbidden(t, "the status", p.as.Status().Patch(t.Context(), obj.DeepCopy(), status), false)
	forbidden(t, "replaced", p.as.Update(t.Context(), obj.DeepCopy()), false)
	forbidden(t, "deleted", p.as.Delete(t.Context(), obj.DeepCopy()), false)
	changed := obj.DeepCopy()
	changed.Spec.Verification.APIServers = []string{"192.0.2.1:443"}
	if err := updates.as.Update(t.Context(), changed, client.DryRunAll); err != nil {
		t.Errorf("updated by an owner: %v", err)
	}
}

// forbidden checks that an attempt was refused, by the policy or by RBAC.
func forbidden(t *testing.T, what string, err error, policy bool) {
	t.Helper()
	if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), refusedPatch) != policy {
		t.Errorf("%s: %v, want it forbidden, by the policy: %t", what, err, policy)
	}
}
