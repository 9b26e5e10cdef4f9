package rotation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// newAuthority creates a SigningAuthority with that status.
func newAuthority(t *testing.T, name string, status v1alpha1.SigningAuthorityStatus, signers ...string) *v1alpha1.SigningAuthority {
	t.Helper()
	if len(signers) == 0 {
		signers = []string{kubeletSigner}
	}
	obj := &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.SigningAuthoritySpec{Secret: v1alpha1.SecretReference{Namespace: "default", Name: name}, Signers: signers},
	}
	kit.NoError(t, kit.Admin(t).Create(t.Context(), obj))
	setStatus(t, obj, status)
	return obj
}

func setStatus(t *testing.T, obj *v1alpha1.SigningAuthority, status v1alpha1.SigningAuthorityStatus) {
	t.Helper()
	obj.Status = status
	kit.NoError(t, kit.Admin(t).Status().Update(t.Context(), obj))
}

// TestRotationAdmission requests every operation, and some invalid ones, in every phase. The policy in
// config/rotation/admission must decide as api/v1alpha1 does.
func TestRotationAdmission(t *testing.T) {
	kit.Parallel(t)
	api := kit.Admin(t)
	kit.Apply(t, "rotation/admission")
	obj := newAuthority(t, "rotation-admission", v1alpha1.SigningAuthorityStatus{})
	ask := func(ctx context.Context, operation v1alpha1.Operation, opts ...client.PatchOption) error {
		changed := obj.DeepCopy()
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.OperationAnnotation, string(operation))
		return api.Patch(ctx, changed, client.MergeFrom(obj), opts...)
	}
	kit.Eventually(t, "the policy holds", func(ctx context.Context) error {
		return kit.OrError(ask(ctx, "nonsense", client.DryRunAll) != nil, "nothing is refused")
	})
	for _, row := range [][2]string{
		{"", "none, wait for the next phase"},
		{"Preparing", "rotation confirm, rotation rollback, rotation attest"},
		{"Prepared", "rotation complete, rotation rollback, rotation accept, rotation attest"},
		{"Completing", "none, wait for the next phase"},
		{"Completed", "rotation start, rotation attest, rotation renew-certificate"},
	} {
		phase, allowed := v1alpha1.Phase(row[0]), row[1]
		kit.Equal(t, "allowed by the API", v1alpha1.AllowedText(phase), allowed)
		setStatus(t, obj, v1alpha1.SigningAuthorityStatus{Phase: phase})
		for _, name := range []string{"start", "complete", "rollback", "confirm", "accept", "attest", "renew-certificate", "nonsense", "Rotate-Start", " start"} {
			err := ask(t.Context(), v1alpha1.Operation(name), client.DryRunAll)
			text := "rotation " + name + " is refused: the phase is " + cmp.Or(string(phase), "New") + "; allowed now: " + allowed
			if slices.Contains(strings.Split(allowed, ", "), "rotation "+name) {
				kit.Check(t, err == nil, "%s in phase %q: %v", name, phase, err)
			} else {
				kit.Check(t, err != nil && strings.Contains(err.Error(), text), "%s in phase %q: %v, want %s", name, phase, err, text)
			}
		}
	}

	// An operation that was requested in time blocks nothing, and may be removed.
	kit.NoError(t, ask(t.Context(), v1alpha1.OperationStart))
	kit.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
	setStatus(t, obj, v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing})
	for _, change := range []func(){
		func() { obj.Labels = map[string]string{"a": "b"} },
		func() { obj.Annotations[v1alpha1.OperationAnnotation] = "" },
		func() { delete(obj.Annotations, v1alpha1.OperationAnnotation) },
	} {
		patch := client.MergeFrom(obj.DeepCopy())
		change()
		if err := api.Patch(t.Context(), obj, patch); err != nil {
			t.Error(err)
		}
	}

	// A new object has no operation, whatever status it has.
	made := &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: "rotation-admission-new", Annotations: map[string]string{v1alpha1.OperationAnnotation: "start"}},
		Spec:       obj.Spec, Status: v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed},
	}
	err := api.Create(t.Context(), made, client.DryRunAll)
	kit.Check(t, err != nil && strings.Contains(err.Error(), "rotation start is refused: the phase is New"),
		"created with an operation: %v", err)
	made.Annotations = nil
	expect.Error(t, "created without one", api.Create(t.Context(), made, client.DryRunAll), "")
}

const (
	refusedPatch = "to patch it is for the annotation " + v1alpha1.OperationAnnotation + " alone"
	setOperation = `{"metadata":{"annotations":{"` + v1alpha1.OperationAnnotation + `":"start"}}}`
	publishMine  = `{"spec":{"trust":{"configMaps":[{"namespace":"default","name":"mine"}]}}}`
)

// attempt is a patch of an authority, in a dry run.
type attempt struct {
	kind  types.PatchType
	patch string
}

// by makes the attempt as a user. Server-side apply gets the fields without the type of the object.
func (a attempt) by(ctx context.Context, as client.Client, obj *v1alpha1.SigningAuthority) error {
	obj, options := obj.DeepCopy(), []client.PatchOption{client.DryRunAll}
	if a.kind == types.ApplyPatchType {
		a.patch = fmt.Sprintf(`{"apiVersion":%q,"kind":"SigningAuthority",%s`, v1alpha1.GroupVersion, strings.TrimPrefix(a.patch, "{"))
		obj = &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: obj.Name}}
		options = append(options, client.ForceOwnership, client.FieldOwner("test"))
	}
	return as.Patch(ctx, obj, client.RawPatch(a.kind, []byte(a.patch)), options...)
}

// TestRotationAdmissionOfPatches checks that an operator, and the manager, can't change more than the annotation, with
// any kind of patch, and that a user who may also update can make any change.
func TestRotationAdmissionOfPatches(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Apply(t, "rotation")
	const operator, owner = "rotation-patcher", "rotation-owner"
	kit.Grant(t, operator, "csr-rotation-operator")
	kit.Create(t, kit.Admin(t), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: owner}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"signingauthorities"}, Verbs: []string{"patch", "update"},
	}}})
	kit.Grant(t, owner, owner)
	obj := newAuthority(t, "rotation-patch", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed})
	obj.Finalizers = []string{"example.com/kept"}
	obj.Annotations = map[string]string{"kept": "a", v1alpha1.OperationAnnotation: "confirm"}
	kit.Update(t, obj)
	as := func(config *rest.Config, user string) client.Client {
		config = rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		c := kit.Must(client.New(config, client.Options{Scheme: kit.Scheme}))(t)
		return c
	}
	admin := kit.ControlPlane(t).Config
	operates, manager, updates := as(admin, operator), as(kit.ServiceAccountConfig(t), ""), as(admin, owner)
	const merge, jsonPatch, apply = types.MergePatchType, types.JSONPatchType, types.ApplyPatchType
	mine := attempt{merge, publishMine}
	kit.Eventually(t, "the policy holds, and the roles", func(ctx context.Context) error {
		for _, user := range []client.Client{operates, manager} {
			if err := mine.by(ctx, user, obj); err == nil || !strings.Contains(err.Error(), refusedPatch) {
				return errors.Join(errors.New("want it refused by the policy"), err)
			}
		}
		return mine.by(ctx, updates, obj)
	})
	for _, test := range []attempt{
		{merge, `{"spec":{"verification":{"apiServers":["192.0.2.1:443"]}}}`},
		{merge, strings.TrimSuffix(setOperation, "}") + "," + strings.TrimPrefix(publishMine, "{")}, // with an operation
		{merge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"gone","uid":"1"}]}}`},
		{merge, `{"metadata":{"finalizers":["example.com/kept","example.com/mine"]}}`},
		{merge, `{"metadata":{"finalizers":null}}`},
		{merge, `{"metadata":{"labels":{"app.kubernetes.io/instance":"mine"}}}`},
		{merge, `{"metadata":{"annotations":{"argocd.argoproj.io/tracking-id":"mine"}}}`},
		{merge, `{"metadata":{"annotations":{"kept":"b"}}}`},
		{merge, `{"metadata":{"annotations":{"kept":null}}}`},
		{merge, `{"metadata":{"annotations":null}}`},
		{jsonPatch, `[{"op":"add","path":"/spec/verification","value":{"apiServers":["192.0.2.1:443"]}}]`},
		{apply, publishMine},
	} {
		forbidden(t, test.patch, test.by(t.Context(), operates, obj), true)
		forbidden(t, test.patch+" by the manager", test.by(t.Context(), manager, obj), true)
		if err := test.by(t.Context(), updates, obj); err != nil {
			t.Errorf("%s by an owner: %v", test.patch, err)
		}
	}
	// The annotation can be added, changed and removed.
	for _, test := range []attempt{
		{merge, setOperation},
		{merge, `{"metadata":{"annotations":{"` + v1alpha1.OperationAnnotation + `":null}}}`},
		{jsonPatch, `[{"op":"remove","path":"/metadata/annotations/` + strings.ReplaceAll(v1alpha1.OperationAnnotation, "/", "~1") + `"}]`},
		{apply, setOperation},
		{merge, `{"metadata":{"annotations":{"kept":"a"},"finalizers":["example.com/kept"]}}`}, // as it is
	} {
		expect.Error(t, test.patch, test.by(t.Context(), operates, obj), "")
	}
	// RBAC refuses the calls that the policy does not cover.
	made := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: "rotation-patch-new"}}
	const newSpec = `"spec":{"secret":{"namespace":"default","name":"new"},"signers":["example.com/new"]}`
	create := attempt{apply, `{"metadata":{"name":"rotation-patch-new"},` + newSpec + `}`}
	status := client.RawPatch(merge, []byte(`{"status":{"phase":"Prepared"}}`))
	forbidden(t, "made by server-side apply", create.by(t.Context(), operates, made), false)
	forbidden(t, "the status", operates.Status().Patch(t.Context(), obj.DeepCopy(), status), false)
	forbidden(t, "replaced", operates.Update(t.Context(), obj.DeepCopy()), false)
	forbidden(t, "deleted", operates.Delete(t.Context(), obj.DeepCopy()), false)
}

// forbidden checks that an attempt was refused, by the policy or by RBAC.
func forbidden(t *testing.T, what string, err error, policy bool) {
	t.Helper()
	kit.Check(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusedPatch) == policy,
		"%s: %v, want it forbidden, by the policy: %t", what, err, policy)
}

// TestSpecBounds checks that the API server refuses a spec that would retire the old CA too early, sign nothing, or
// overwrite records. If the API server did not accept a rule, all of it would fail. An authority can get one more signer
// that API servers verify, and no other.
func TestSpecBounds(t *testing.T) {
	kit.Parallel(t)
	api := kit.Admin(t)
	lasts := func(value time.Duration) *metav1.Duration { return &metav1.Duration{Duration: value} }
	to := func(all ...string) (to v1alpha1.Trust) {
		for _, one := range all {
			namespace, name, _ := strings.Cut(one, "/")
			to.ConfigMaps = append(to.ConfigMaps, v1alpha1.TrustEntry{Namespace: namespace, Name: name})
		}
		return to
	}
	type spec = v1alpha1.SigningAuthoritySpec
	for name, test := range map[string]struct {
		change func(*spec)
		want   string // empty if it is accepted
	}{
		"at the bounds": {func(s *spec) {
			s.Lifetimes = v1alpha1.Lifetimes{Adopted: lasts(time.Hour), OldCap: lasts(5 * time.Minute)}
			s.CA.Duration, s.RotateAfter, s.Verification.SettleFor = lasts(24*time.Hour), lasts(time.Hour), lasts(time.Second)
			s.Trust = to("kube-system/csr-trust", "default/extension-apiserver-authentication", "default/csr-signer-removed")
		}, ""},
		"long": {func(s *spec) {
			s.Lifetimes.Adopted, s.CA.Duration = lasts(10*365*24*time.Hour), lasts(100*365*24*time.Hour)
		}, ""},
		"adopted for nothing":  {func(s *spec) { s.Lifetimes.Adopted = lasts(0) }, "must be 1h or more"},
		"adopted, negative":    {func(s *spec) { s.Lifetimes.Adopted = lasts(-time.Hour) }, "spec.lifetimes.adopted"},
		"cap":                  {func(s *spec) { s.Lifetimes.OldCap = lasts(299 * time.Second) }, "must be 5m or more"},
		"CA":                   {func(s *spec) { s.CA.Duration = lasts(23 * time.Hour) }, "must be 24h or more"},
		"always":               {func(s *spec) { s.RotateAfter = lasts(59 * time.Minute) }, "spec.rotateAfter"},
		"no settling":          {func(s *spec) { s.Verification.SettleFor = lasts(0) }, "must be 1s or more"},
		"the API servers' own": {func(s *spec) { s.Trust = to("kube-system/extension-apiserver-authentication") }, "the API servers write this ConfigMap"},
		"its own keys": {func(s *spec) {
			s.Trust.Secrets = []v1alpha1.TrustEntry{{Namespace: "default", Name: "other"}, {Namespace: "default", Name: "spec-bounds"}}
		}, "spec.trust.secrets names spec.secret"},
		"another Secret": {func(s *spec) {
			s.Trust.Secrets = []v1alpha1.TrustEntry{{Namespace: "other", Name: "spec-bounds"}, {Namespace: "default", Name: "a-ledger"}}
		}, ""},
		"a ledger":    {func(s *spec) { s.Trust = to("default/csr-signer-ledger") }, "the ledgers of issued certificates"},
		"moved nodes": {func(s *spec) { s.Trust = to("default/csr-signer-moved") }, "the ledgers of issued certificates"},
	} {
		obj := &v1alpha1.SigningAuthority{
			ObjectMeta: metav1.ObjectMeta{Name: "spec-bounds"},
			Spec:       spec{Secret: v1alpha1.SecretReference{Namespace: "default", Name: "spec-bounds"}, Signers: []string{"example.com/spec"}},
		}
		test.change(&obj.Spec)
		err := api.Create(t.Context(), obj, client.DryRunAll)
		kit.Check(t, (test.want == "") == (err == nil) && (err == nil || strings.Contains(err.Error(), test.want)),
			"%s: error %v, want %q", name, err, test.want)
	}
	const serving, custom = "kubernetes.io/kubelet-serving", "example.com/spec"
	for i, test := range []struct {
		before, after []string
		refused       bool
	}{
		{before: []string{userSigner}, after: []string{userSigner, kubeletSigner}},
		{before: []string{serving, kubeletSigner}, after: []string{serving, kubeletSigner, userSigner}},
		{before: []string{serving}, after: []string{serving, userSigner}, refused: true},
		{before: []string{userSigner, kubeletSigner}, after: []string{userSigner, kubeletSigner, serving}, refused: true},
		{before: []string{userSigner}, after: []string{userSigner, custom}, refused: true},
		{before: []string{userSigner, serving}, after: []string{kubeletSigner, serving}},
	} {
		obj := newAuthority(t, fmt.Sprint("spec-signers-", i), v1alpha1.SigningAuthorityStatus{}, test.before...)
		obj.Spec.Signers = test.after
		if err := api.Update(t.Context(), obj, client.DryRunAll); (err != nil) != test.refused {
			t.Errorf("%v to %v: error %v", test.before, test.after, err)
		}
	}
}
