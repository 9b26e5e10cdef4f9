package manifests

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestLedgerRole compares the chart's role for a ledger, and its subjects, with those of the component.
func TestLedgerRole(t *testing.T) {
	t.Parallel()
	const name = "csr-ledger"
	component := typed[rbacv1.Role](t, kustomize(t, "rotation"), "Role")[name]
	for options, want := range map[string]string{"--set=split=false": "csr-controller-manager", "--set=split=true": signer} {
		all := helm(t, "--set=config.rotation.enabled=true", options)
		role := typed[rbacv1.Role](t, all, "Role")[name]
		if diff := cmp.Diff(component.Rules, role.Rules); diff != "" || role.Namespace != component.Namespace {
			t.Errorf("%s: namespace %s, rules (-component +chart):\n%s", options, role.Namespace, diff)
		}
		binding := typed[rbacv1.RoleBinding](t, all, "RoleBinding")[name]
		if binding.RoleRef.Name != name || len(binding.Subjects) != 1 || binding.Subjects[0].Name != want {
			t.Errorf("%s: bound %v", options, binding.Subjects)
		}
	}
	if _, found := typed[rbacv1.Role](t, helm(t), "Role")[name]; found {
		t.Error("there is a role without rotation")
	}
}
