package manifests

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestBlockListRole compares the chart's role for a block list, and its subjects, with those of the component.
func TestBlockListRole(t *testing.T) {
	t.Parallel()
	const name, value = "csr-node-block-list", "--set=config.nodeBlockList=" + systemNamespace + "/csr-node-block-list"
	component := typed[rbacv1.Role](t, kustomize(t, "node-block-list"), "Role")[name]
	for options, want := range map[string][]string{
		"--set=split=false": {"csr-controller-manager", "csr-controller-manager"},
		"--set=split=true":  {"csr-approver", "csr-signer"},
	} {
		all := helm(t, value, options)
		role := typed[rbacv1.Role](t, all, "Role")[name]
		if diff := cmp.Diff(component.Rules, role.Rules); diff != "" || role.Namespace != component.Namespace {
			t.Errorf("%s: namespace %s, rules (-component +chart):\n%s", options, role.Namespace, diff)
		}
		var bound []string
		for _, binding := range typed[rbacv1.RoleBinding](t, all, "RoleBinding") {
			if binding.RoleRef.Name == name {
				bound = append(bound, binding.Subjects[0].Name)
			}
		}
		slices.Sort(bound)
		if diff := cmp.Diff(want, bound); diff != "" {
			t.Errorf("%s: bound (-want +got):\n%s", options, diff)
		}
	}
	if _, found := typed[rbacv1.Role](t, helm(t), "Role")[name]; found {
		t.Error("there is a role without a list")
	}
}
