package kit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// As returns a client of a user in the control plane's token file.
func As(t *testing.T, user string) client.Client {
	t.Helper()
	return ClientOf(t, TokenConfig(t, user))
}

// The roles of Kubernetes with which kubelets may create requests, and have their first one and renewals approved.
const (
	MayCreate   = "system:node-bootstrapper"
	MayJoin     = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	MayRenewOwn = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
)

// ClientOf returns a client of cfg's user.
func ClientOf(t testing.TB, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme})
	NoError(t, err)
	return c
}

// TokenConfig returns the configuration of a user in the control plane's token file.
func TokenConfig(t *testing.T, user string) *rest.Config { return WithToken(t, user+"-token") }

// WithToken returns the configuration of the user who has a token.
func WithToken(t *testing.T, token string) *rest.Config {
	return withToken(ControlPlane(t).Config, token)
}

func withToken(cfg *rest.Config, token string) *rest.Config {
	cfg = rest.AnonymousClientConfig(cfg)
	cfg.BearerToken = token
	return cfg
}

// KubeletOf returns a client of the kubelet of node.
func KubeletOf(t *testing.T, node string) client.Client {
	t.Helper()
	return impersonate(t, csr.NodeUserPrefix+node, csr.NodeGroup, "system:authenticated")
}

func impersonate(t *testing.T, user string, groups ...string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(ControlPlane(t).Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	c, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme, Mapper: Admin(t).RESTMapper()})
	NoError(t, err)
	return c
}

// Impersonate returns a client of a user in group flooders.
func Impersonate(t *testing.T, user string) client.Client {
	t.Helper()
	return impersonate(t, user, "flooders")
}

// TokenOf returns a configuration with a token of account.
func TokenOf(t testing.TB, account *corev1.ServiceAccount) *rest.Config {
	t.Helper()
	return AccountConfig(t, ControlPlane(t).Config, Admin(t), account)
}

// AccountConfig is TokenOf for the control plane of cfg.
func AccountConfig(t testing.TB, cfg *rest.Config, admin client.Client, account *corev1.ServiceAccount) *rest.Config {
	t.Helper()
	token := &authenticationv1.TokenRequest{}
	NoError(t, admin.SubResource("token").Create(t.Context(), account, token))
	return withToken(cfg, token.Status.Token)
}

// ServiceAccountConfig returns a configuration for the ServiceAccount that config/rbac binds.
func ServiceAccountConfig(t testing.TB) *rest.Config {
	t.Helper()
	return TokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: ManagerAccount}})
}

// Grant binds a ClusterRole to a user for the duration of the test.
func Grant(t testing.TB, user, clusterRole string) *rbacv1.ClusterRoleBinding {
	t.Helper()
	return bind(t, clusterRole, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
}

// GrantJoining permits user to request first certificates of nodes, and to have them approved. It waits until the authorizer knows that.
func GrantJoining(t testing.TB, user string) {
	t.Helper()
	Grant(t, user, MayCreate)
	Grant(t, user, MayJoin)
	EventuallyAllowed(t, user, true)
}

// GrantGroup is Grant for a group.
func GrantGroup(t testing.TB, group, clusterRole string) {
	t.Helper()
	bind(t, clusterRole, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group})
}

func bind(t testing.TB, clusterRole string, subject rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	t.Helper()
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, RoleRef: role, Subjects: []rbacv1.Subject{subject}}
	Create(t, Admin(t), binding)
	return binding
}

// MaySign grants holder the right to sign for custom signers, as docs/how-to/serve-a-custom-signer.md does.
func MaySign(t testing.TB, holder string, signers ...string) {
	t.Helper()
	GrantRule(t, serviceaccount.MakeUsername(SystemNamespace, holder), certificatesv1.GroupName, "signers", "sign", signers...)
}

// GrantRule binds a new ClusterRole with one rule to a user for the duration of the test.
func GrantRule(t testing.TB, user, group, resource, verb string, names ...string) {
	t.Helper()
	rule := rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: []string{verb}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: []rbacv1.PolicyRule{rule}}
	Create(t, Admin(t), role)
	Grant(t, user, role.Name)
}

// EventuallyAllowed waits until the API server's authorizer knows a binding, or no longer does.
func EventuallyAllowed(t testing.TB, user string, want bool) {
	t.Helper()
	Eventually(t, "RBAC of "+user, func(ctx context.Context) error {
		got, err := authz.SubjectAccess{Client: Admin(t)}.Allowed(ctx, csr.Requester{Username: user},
			approver.NodeClient().Recognisers[1].Permission)
		if err == nil && got != want {
			err = fmt.Errorf("allowed is %t", got)
		}
		return err
	})
}

// TakeRole deletes binding, a RoleBinding or a ClusterRoleBinding of which only the name is set. The returned function creates it
// again.
func TakeRole(t *testing.T, binding client.Object) (giveBack func()) {
	t.Helper()
	NoError(t, Admin(t).Get(t.Context(), client.ObjectKeyFromObject(binding), binding))
	NoError(t, Admin(t).Delete(t.Context(), binding))
	return func() {
		binding.SetResourceVersion("")
		binding.SetUID("")
		Create(t, Admin(t), binding)
	}
}

// Kubectl runs the real kubectl and returns its output.
func Kubectl(t *testing.T, kubeconfig string, args ...string) string {
	t.Helper()
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	out, err := exec.CommandContext(t.Context(), kubectl, append([]string{"--kubeconfig", kubeconfig}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
