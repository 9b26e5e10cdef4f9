package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// TestSpecBounds has the API server refuse what would let go of the old CA too early, sign nothing, or write over what is
// noted. A rule that the API server does not take would fail all of it.
func TestSpecBounds(t *testing.T) {
	api := authorities(t)
	lasts := func(value time.Duration) *metav1.Duration { return &metav1.Duration{Duration: value} }
	to := func(namespace, name string) v1alpha1.Trust {
		return v1alpha1.Trust{ConfigMaps: []v1alpha1.ConfigMapKey{{Namespace: namespace, Name: name}}}
	}
	type spec = v1alpha1.SigningAuthoritySpec
	for name, test := range map[string]struct {
		change func(*spec)
		want   string // empty if it is taken
	}{
		"at the bounds": {func(s *spec) {
			s.Lifetimes = v1alpha1.Lifetimes{Adopted: lasts(time.Hour), OldCap: lasts(5 * time.Minute)}
			s.CA.Duration, s.RotateAfter, s.Verification.SettleFor = lasts(24*time.Hour), lasts(time.Hour), lasts(time.Second)
			s.Trust = to("kube-system", "csr-trust")
		}, ""},
		"long": {func(s *spec) {
			s.Lifetimes.Adopted, s.CA.Duration = lasts(10*365*24*time.Hour), lasts(100*365*24*time.Hour)
		}, ""},
		"adopted for nothing":   {func(s *spec) { s.Lifetimes.Adopted = lasts(0) }, "spec.lifetimes.adopted: Invalid value: \"0s\": must be 1h or more"},
		"adopted, negative":     {func(s *spec) { s.Lifetimes.Adopted = lasts(-time.Hour) }, "spec.lifetimes.adopted"},
		"cap":                   {func(s *spec) { s.Lifetimes.OldCap = lasts(299 * time.Second) }, "must be 5m or more"},
		"CA":                    {func(s *spec) { s.CA.Duration = lasts(23 * time.Hour) }, "must be 24h or more"},
		"always":                {func(s *spec) { s.RotateAfter = lasts(59 * time.Minute) }, "spec.rotateAfter"},
		"no settling":           {func(s *spec) { s.Verification.SettleFor = lasts(0) }, "must be 1s or more"},
		"the API servers' own":  {func(s *spec) { s.Trust = to("kube-system", "extension-apiserver-authentication") }, "the API servers write that one"},
		"of that name, another": {func(s *spec) { s.Trust = to("default", "extension-apiserver-authentication") }, ""},
		"a ledger":              {func(s *spec) { s.Trust = to("default", "csr-signer-ledger") }, "what is issued is noted"},
		"a shard":               {func(s *spec) { s.Trust = to("default", "csr-signer-nodes-0f") }, "what is issued is noted"},
		"not quite a shard":     {func(s *spec) { s.Trust = to("default", "csr-signer-nodes-10") }, ""},
	} {
		obj := &v1alpha1.SigningAuthority{
			ObjectMeta: metav1.ObjectMeta{Name: "spec-bounds"},
			Spec:       spec{Secret: v1alpha1.SecretReference{Namespace: "default", Name: "spec-bounds"}, Signers: []string{"example.com/spec"}},
		}
		test.change(&obj.Spec)
		err := api.Create(t.Context(), obj, client.DryRunAll)
		if (test.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

// TestSpecIsForWhoMayUpdate has one patch who may do only that, and one who may update as well.
func TestSpecIsForWhoMayUpdate(t *testing.T) {
	api := authorities(t)
	apply(t, "rotation/admission")
	t.Cleanup(func() { unapplyAdmission(t) })
	obj := newAuthority(t, api, "rotation-spec", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed})
	patch := func(ctx context.Context, user string, change func(*v1alpha1.SigningAuthority)) error {
		config := rest.CopyConfig(shared.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		as, err := client.New(config, client.Options{Scheme: api.Scheme()})
		if err != nil {
			return err
		}
		changed := obj.DeepCopy()
		change(changed)
		return as.Patch(ctx, changed, client.MergeFrom(obj), client.DryRunAll)
	}
	const operator, owner = "rotation-spec-operator", "rotation-spec-owner"
	grantAuthorities(t, operator, "patch")
	grantAuthorities(t, owner, "patch", "update")
	publish := func(obj *v1alpha1.SigningAuthority) {
		obj.Spec.Trust.ConfigMaps = []v1alpha1.ConfigMapKey{{Namespace: "default", Name: "mine"}}
	}
	operate := func(obj *v1alpha1.SigningAuthority) {
		metav1.SetMetaDataAnnotation(&obj.ObjectMeta, v1alpha1.OperationAnnotation, string(v1alpha1.RotateStart))
	}
	eventually(t, "the policy holds, and the roles", func(ctx context.Context) error {
		err := patch(ctx, operator, publish)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may be changed only by who may update it") {
			return errors.Join(errors.New("want it refused by the policy"), err)
		}
		return patch(ctx, owner, operate)
	})
	for what, change := range map[string]func(*v1alpha1.SigningAuthority){
		"who is asked": func(obj *v1alpha1.SigningAuthority) { obj.Spec.Verification.APIServers = []string{"192.0.2.1:443"} },
		"both":         func(obj *v1alpha1.SigningAuthority) { publish(obj); operate(obj) },
	} {
		if err := patch(t.Context(), operator, change); !apierrors.IsForbidden(err) {
			t.Errorf("%s, by who may not: %v", what, err)
		}
	}
	if err := errors.Join(patch(t.Context(), operator, operate), patch(t.Context(), owner, publish)); err != nil {
		t.Error(err)
	}
}

// grantAuthorities lets user do that with every SigningAuthority.
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
		if err := admin.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := admin.Delete(context.Background(), obj); err != nil {
				t.Error(err)
			}
		})
	}
}
