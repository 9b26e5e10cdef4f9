package loop

import (
	"context"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestEveryAuthenticatorWorks joins with each kind of credential of the TLS bootstrapping document, through a binding
// to its group. The approver knows none of them.
func TestEveryAuthenticatorWorks(t *testing.T) {
	kit.Parallel(t)
	kit.StartLoop(t, csrenv.Options{})
	for name, test := range map[string]struct {
		group  string
		config func(*testing.T) *rest.Config
	}{
		"bootstrap token":    {"system:bootstrappers", bootstrapToken},
		"token file":         {"joiners", func(t *testing.T) *rest.Config { return kit.WithToken(t, "joiner-token") }},
		"ServiceAccount":     {"system:serviceaccounts:kube-system", serviceAccountToken},
		"client certificate": {"joiners-by-certificate", clientCertificate},
	} {
		t.Run(name, func(t *testing.T) {
			for _, role := range []string{kit.MayCreate, kit.MayJoin} {
				kit.Create(t, kit.Admin(t), &rbacv1.ClusterRoleBinding{
					ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
					RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
					Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: test.group}},
				})
			}
			joiner, err := client.New(test.config(t), client.Options{Scheme: clientgoscheme.Scheme})
			if err != nil {
				t.Fatal(err)
			}
			var obj *kit.Request
			kit.Eventually(t, "the credential works", func(ctx context.Context) error {
				obj = kit.NodeRequest(t, "any")
				return joiner.Create(ctx, obj)
			})
			t.Cleanup(func() { _ = kit.Admin(t).Delete(context.Background(), obj) })
			cert := kit.Leaf(t, kit.Reaches(t, obj, csr.Issued))
			if cert.Subject.CommonName != "system:node:any" {
				t.Errorf("certificate is for %q", cert.Subject.CommonName)
			}
		})
	}
}

func bootstrapToken(t *testing.T) *rest.Config {
	t.Helper()
	kit.Create(t, kit.Admin(t), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-abcdef"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		},
	})
	return kit.WithToken(t, "abcdef.0123456789abcdef")
}

func serviceAccountToken(t *testing.T) *rest.Config {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "node-bootstrapper"}}
	kit.Create(t, kit.Admin(t), account)
	token := &authenticationv1.TokenRequest{}
	if err := kit.Admin(t).SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	return kit.WithToken(t, token.Status.Token)
}

func clientCertificate(t *testing.T) *rest.Config {
	t.Helper()
	user, err := kit.ControlPlane(t).Env.AddUser(envtest.User{Name: "installer", Groups: []string{"joiners-by-certificate"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return user.Config()
}
