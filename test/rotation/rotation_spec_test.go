package rotation

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestSpecBounds checks that the API server refuses a spec that would retire the old CA too early, sign nothing, or
// overwrite records. If the API server did not accept a rule, all of it would fail.
func TestSpecBounds(t *testing.T) {
	kit.Parallel(t)
	api := kit.Admin(t)
	lasts := func(value time.Duration) *metav1.Duration { return &metav1.Duration{Duration: value} }
	to := func(namespace, name string) v1alpha1.Trust {
		return v1alpha1.Trust{ConfigMaps: []v1alpha1.ConfigMapKey{{Namespace: namespace, Name: name}}}
	}
	type spec = v1alpha1.SigningAuthoritySpec
	for name, test := range map[string]struct {
		change func(*spec)
		want   string // empty if it is accepted
	}{
		"at the bounds": {func(s *spec) {
			s.Lifetimes = v1alpha1.Lifetimes{Adopted: lasts(time.Hour), OldCap: lasts(5 * time.Minute)}
			s.CA.Duration, s.RotateAfter, s.Verification.SettleFor = lasts(24*time.Hour), lasts(time.Hour), lasts(time.Second)
			s.Trust = to("kube-system", "csr-trust")
		}, ""},
		"long": {func(s *spec) {
			s.Lifetimes.Adopted, s.CA.Duration = lasts(10*365*24*time.Hour), lasts(100*365*24*time.Hour)
		}, ""},
		"adopted for nothing":   {func(s *spec) { s.Lifetimes.Adopted = lasts(0) }, "must be 1h or more"},
		"adopted, negative":     {func(s *spec) { s.Lifetimes.Adopted = lasts(-time.Hour) }, "spec.lifetimes.adopted"},
		"cap":                   {func(s *spec) { s.Lifetimes.OldCap = lasts(299 * time.Second) }, "must be 5m or more"},
		"CA":                    {func(s *spec) { s.CA.Duration = lasts(23 * time.Hour) }, "must be 24h or more"},
		"always":                {func(s *spec) { s.RotateAfter = lasts(59 * time.Minute) }, "spec.rotateAfter"},
		"no settling":           {func(s *spec) { s.Verification.SettleFor = lasts(0) }, "must be 1s or more"},
		"the API servers' own":  {func(s *spec) { s.Trust = to("kube-system", "extension-apiserver-authentication") }, "the API servers write this ConfigMap"},
		"of that name, another": {func(s *spec) { s.Trust = to("default", "extension-apiserver-authentication") }, ""},
		"a ledger":              {func(s *spec) { s.Trust = to("default", "csr-signer-ledger") }, "the ledgers of issued certificates"},
		"a shard":               {func(s *spec) { s.Trust = to("default", "csr-signer-nodes-0f") }, "the ledgers of issued certificates"},
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

// TestASignerThatAPIServersVerifyMayCome checks that an authority can get one more signer that API servers verify,
// and no other.
func TestASignerThatAPIServersVerifyMayCome(t *testing.T) {
	kit.Parallel(t)
	api := kit.Admin(t)
	const serving, users, kubelets, custom = "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "example.com/spec"
	for name, test := range map[string]struct {
		before, after []string
		refused       bool
	}{
		"the other one of two":            {before: []string{users}, after: []string{users, kubelets}},
		"beside what is asked of nobody":  {before: []string{serving, kubelets}, after: []string{serving, kubelets, users}},
		"the first of them":               {before: []string{serving}, after: []string{serving, users}, refused: true},
		"one whose verifiers are unknown": {before: []string{users, kubelets}, after: []string{users, kubelets, serving}, refused: true},
		"a custom one":                    {before: []string{users}, after: []string{users, custom}, refused: true},
		"one in another's place":          {before: []string{users, serving}, after: []string{kubelets, serving}},
	} {
		obj := &v1alpha1.SigningAuthority{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-signers-"},
			Spec:       v1alpha1.SigningAuthoritySpec{Secret: v1alpha1.SecretReference{Namespace: "default", Name: "spec-signers"}, Signers: test.before},
		}
		if err := api.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = api.Delete(context.Background(), obj) })
		obj.Spec.Signers = test.after
		if err := api.Update(t.Context(), obj, client.DryRunAll); (err != nil) != test.refused {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
