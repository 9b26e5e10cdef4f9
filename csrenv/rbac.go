package csrenv

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kubeletBindings are what the TLS bootstrapping document has an administrator bind; the roles exist in every cluster
// (Kubernetes plugin/pkg/auth/authorizer/rbac/bootstrappolicy).
var kubeletBindings = []struct{ name, role, group string }{
	{"csrenv:create-csrs-for-bootstrapping", "system:node-bootstrapper", "system:bootstrappers"},
	{"csrenv:create-csrs-for-renewal", "system:node-bootstrapper", "system:nodes"}, // else the Node authorizer's part
	{"csrenv:approve-node-client",
		"system:certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers"},
	{"csrenv:approve-self-node-client",
		"system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"},
}

func grantKubelets(ctx context.Context, admin client.Client) error {
	for _, binding := range kubeletBindings {
		obj := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: binding.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: binding.group}},
		}
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, obj)); err != nil {
			return fmt.Errorf("bind %s to %s: %w", binding.role, binding.group, err)
		}
	}
	return nil
}
