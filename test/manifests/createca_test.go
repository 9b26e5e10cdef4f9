package manifests

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestCreateCARole compares the chart's role for creating a CA, and its subjects, with those of the component.
func TestCreateCARole(t *testing.T) {
	t.Parallel()
	const name = "csr-create-ca"
	component := typed[rbacv1.Role](t, kustomize(t, createCA), "Role")[name]
	for _, value := range []string{
		"--set=config.signing.createIfMissing=true",
		"--set-json=config.signing.signers=[{\"name\":\"example.com/a\",\"secret\":\"" + systemNamespace + "/a\",\"createIfMissing\":true,\"usages\":[\"server auth\"]}]",
	} {
		for options, want := range map[string]string{"--set=split=false": "csr-controller-manager", "--set=split=true": "csr-signer"} {
			all := helm(t, value, options)
			role := typed[rbacv1.Role](t, all, "Role")[name]
			if diff := cmp.Diff(component.Rules, role.Rules); diff != "" || role.Namespace != component.Namespace {
				t.Errorf("%s %s: namespace %s, rules (-component +chart):\n%s", value, options, role.Namespace, diff)
			}
			binding := typed[rbacv1.RoleBinding](t, all, "RoleBinding")[name]
			if len(binding.Subjects) != 1 || binding.Subjects[0].Name != want || binding.RoleRef.Name != name || binding.Namespace != component.Namespace {
				t.Errorf("%s %s: bound to %v in %s", value, options, binding.Subjects, binding.Namespace)
			}
		}
	}
	if _, found := typed[rbacv1.Role](t, helm(t), "Role")[name]; found {
		t.Error("there is a role though no CA is to be made")
	}
}
