package integration

import (
	"context"
	"errors"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// takeRole deletes binding, a RoleBinding or ClusterRoleBinding, and waits until refused reports that the API server knows
// it. The returned function creates the binding again.
func takeRole(t *testing.T, binding client.Object, refused func(context.Context) bool) (giveBack func()) {
	t.Helper()
	if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(binding), binding); err != nil {
		t.Fatal(err)
	}
	if err := admin(t).Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the role is taken", func(ctx context.Context) error {
		if !refused(ctx) {
			return errors.New("its rights are still in effect")
		}
		return nil
	})
	return func() {
		binding.SetResourceVersion("")
		binding.SetUID("")
		create(t, admin(t), binding)
	}
}

// bindingOf returns the name and kind of a ClusterRoleBinding that roleConfig made, or of a RoleBinding if namespace is not
// empty.
func bindingOf(account, role, namespace string) client.Object {
	if namespace == "" {
		binding := &rbacv1.ClusterRoleBinding{}
		binding.Name = role + "-for-" + account
		return binding
	}
	binding := &rbacv1.RoleBinding{}
	binding.Namespace, binding.Name = namespace, role+"-for-"+account
	return binding
}
