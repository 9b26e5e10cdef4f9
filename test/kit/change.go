package kit

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Remove deletes obj as the administrator.
func Remove(t testing.TB, obj client.Object) {
	t.Helper()
	if err := Admin(t).Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// Update writes obj as the administrator.
func Update(t testing.TB, obj client.Object) {
	t.Helper()
	if err := Admin(t).Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// GrantRule binds a new ClusterRole with one rule to a user for the duration of the test.
func GrantRule(t testing.TB, user, group, resource, verb string, names ...string) {
	t.Helper()
	rule := rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: []string{verb}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: []rbacv1.PolicyRule{rule}}
	Create(t, Admin(t), role)
	Grant(t, user, role.Name)
}
