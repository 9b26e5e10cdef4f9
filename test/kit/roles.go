package kit

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
)

// ManagerAccount is the ServiceAccount that config/rbac binds.
const ManagerAccount = "csr-controller-manager"

// SignerAccount is the ServiceAccount of the signer in config/overlays/split.
const SignerAccount = "csr-signer"

// kustomized holds what kubectl kustomize printed for each folder of config.
var kustomized sync.Map

// Rendered returns the objects of a folder of config.
func Rendered(t testing.TB, folder string) []*unstructured.Unstructured {
	t.Helper()
	once, _ := kustomized.LoadOrStore(folder, sync.OnceValues(func() ([]byte, error) {
		render := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "kustomize", filepath.Join("..", "..", "config", folder))
		render.Stderr = os.Stderr
		return render.Output()
	}))
	return Parse(t, Must(once.(func() ([]byte, error))())(t))
}

// Parse returns the objects in data, in YAML. Empty documents are left out.
func Parse(t testing.TB, data []byte) (all []*unstructured.Unstructured) {
	t.Helper()
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		obj := &unstructured.Unstructured{}
		err := documents.Decode(obj)
		if errors.Is(err, io.EOF) {
			return all
		}
		NoError(t, err)
		if len(obj.Object) > 0 {
			all = append(all, obj)
		}
	}
}

// InstallRBAC applies config/rbac.
func InstallRBAC(t testing.TB) {
	t.Helper()
	Apply(t, "rbac")
}

// Apply creates the missing objects of a folder of config. At the end of the test it removes the bindings, because
// the next part of the test may test a right that they grant.
func Apply(t testing.TB, folder string) {
	t.Helper()
	ApplyAll(t, Rendered(t, folder))
}

// ApplyAll is Apply for objects.
func ApplyAll(t testing.TB, all []*unstructured.Unstructured) {
	t.Helper()
	for _, obj := range CreateMissing(t, Admin(t), all) {
		if IsBinding(obj) {
			AtEnd(t, func() error { return client.IgnoreNotFound(Admin(t).Delete(context.Background(), obj)) })
		}
	}
}

// CreateMissing creates the objects in all that do not exist, and returns them.
func CreateMissing(t testing.TB, c client.Client, all []*unstructured.Unstructured) (created []*unstructured.Unstructured) {
	t.Helper()
	for _, obj := range all {
		err := c.Create(t.Context(), obj)
		NoError(t, client.IgnoreAlreadyExists(err))
		if err == nil {
			created = append(created, obj)
		}
	}
	return created
}

// RolesForSecret returns the roles of a signing CA in the Secret called name, bound to holder. They are a copy of those that
// config/rotation/kubelet-serving ships for its Secret, as that folder says, with the trust bundles of all of Kubernetes'
// signers.
func RolesForSecret(t testing.TB, name, holder string) []*unstructured.Unstructured {
	t.Helper()
	all := Renamed(t, Rendered(t, "rotation/kubelet-serving"), "csr-kubelet-serving-ca", name)
	for _, obj := range all {
		rules, _, _ := unstructured.NestedSlice(obj.Object, "rules")
		if obj.GetKind() == "ClusterRole" && len(rules) == 1 {
			var names []any
			for _, signer := range csr.BuiltinSigners() {
				names = append(names, trust.BundleName(signer, name))
			}
			rules[0].(map[string]any)["resourceNames"] = names
			obj.Object["rules"] = rules
		}
	}
	if holder == SignerAccount { // the other binding is for csr-rotation
		all = slices.DeleteFunc(all, func(obj *unstructured.Unstructured) bool {
			return IsBinding(obj) && obj.GetName() == name+"-rotation"
		})
	}
	return BoundTo(t, holder, all)
}

// Renamed returns all, with the text to in the place of from.
func Renamed(t testing.TB, all []*unstructured.Unstructured, from, to string) []*unstructured.Unstructured {
	t.Helper()
	for _, obj := range all {
		data, err := obj.MarshalJSON()
		if err == nil {
			err = obj.UnmarshalJSON(bytes.ReplaceAll(data, []byte(from), []byte(to)))
		}
		NoError(t, err)
	}
	return all
}

// BoundTo makes the ServiceAccount called holder the only subject of each binding in all, and returns all.
func BoundTo(t testing.TB, holder string, all []*unstructured.Unstructured) []*unstructured.Unstructured {
	t.Helper()
	binding, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&rbacv1.RoleBinding{Subjects: []rbacv1.Subject{AccountCalled(holder)}})
	NoError(t, err)
	for _, obj := range all {
		if IsBinding(obj) {
			obj.Object["subjects"] = runtime.DeepCopyJSONValue(binding["subjects"])
		}
	}
	return all
}

// IsBinding reports whether obj is a RoleBinding or a ClusterRoleBinding.
func IsBinding(obj *unstructured.Unstructured) bool {
	return strings.HasSuffix(obj.GetKind(), "RoleBinding")
}

// AccountCalled returns a ServiceAccount in the namespace of the manager.
func AccountCalled(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: SystemNamespace, Name: name}
}

func subjectsOf(t testing.TB, obj *unstructured.Unstructured) []rbacv1.Subject {
	t.Helper()
	binding := rbacv1.ClusterRoleBinding{}
	NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &binding))
	return binding.Subjects
}

// ManagerConfig installs config/rbac and returns the configuration of its ServiceAccount, once its roles are in effect.
func ManagerConfig(t testing.TB) *rest.Config {
	t.Helper()
	InstallRBAC(t)
	cfg := ServiceAccountConfig(t)
	awaitRights(t, cfg, false)
	return cfg
}

// ManagerConfigOn is ManagerConfig for the control plane of cfg, and keeps the bindings. For a manager that rotates it also
// installs config/rotation.
func ManagerConfigOn(t testing.TB, cfg *rest.Config, admin client.Client, rotates bool) *rest.Config {
	t.Helper()
	CreateMissing(t, admin, Rendered(t, "rbac"))
	if rotates {
		CreateMissing(t, admin, Rendered(t, "rotation"))
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: ManagerAccount}}
	cfg = AccountConfig(t, cfg, admin, account)
	awaitRights(t, cfg, rotates)
	return cfg
}

// RoleConfig returns the configuration of the ServiceAccount of one controller. The account has only the roles that
// config/overlays/split binds to it, and those in more folders of config. RoleConfig waits until they are in effect.
func RoleConfig(t testing.TB, controller string, more ...string) *rest.Config {
	t.Helper()
	name := "csr-" + controller
	var all []*unstructured.Unstructured
	for _, folder := range more { // first, so that they are in effect when the others are
		all = append(all, Rendered(t, folder)...)
	}
	for _, obj := range Rendered(t, "overlays/split") {
		switch obj.GetKind() {
		case "Namespace", "ServiceAccount", "ClusterRole", "Role":
			all = append(all, obj)
		case "ClusterRoleBinding", "RoleBinding":
			if slices.Contains(subjectsOf(t, obj), AccountCalled(name)) {
				all = append(all, obj)
			}
		}
	}
	for _, obj := range BoundTo(t, name, all) {
		if IsBinding(obj) {
			obj.SetName(obj.GetName() + "-for-" + name) // config/rbac may be installed too
		}
	}
	ApplyAll(t, all)
	cfg := TokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: name}})
	awaitRights(t, cfg, false, "--controllers="+controller, "--leader-elect-resource-name="+name)
	return cfg
}

// Rights returns the rights that a manager with configuration c checks.
func Rights(c *config.Configuration) (rights []check.Right) {
	for _, right := range controllers.Rights(c, controllers.LeaseNamespace(c)) {
		rights = append(rights, check.Right(right))
	}
	return rights
}

// awaitRights waits until the API server grants cfg's user what a manager with StandardArgs and args needs.
func awaitRights(t testing.TB, cfg *rest.Config, rotates bool, args ...string) {
	t.Helper()
	c := Must(config.Load(slices.Concat(StandardArgs, args), cel.New))(t)
	c.Rotation.Enabled = rotates
	rights := Rights(c)
	as := reviewsv1.NewForConfigOrDie(cfg)
	Eventually(t, "the roles are in effect", func(ctx context.Context) error {
		for _, result := range check.Rights(ctx, as.SelfSubjectAccessReviews(), rights) {
			if result.Status != check.OK {
				return fmt.Errorf("%s: %s", result.Subject, result.Evidence)
			}
		}
		return nil
	})
}

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
	return Must(client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme}))(t)
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
	return Impersonate(t, csr.NodeUserPrefix+node, csr.NodeGroup, "system:authenticated")
}

// Impersonate returns a client of a user in groups.
func Impersonate(t *testing.T, user string, groups ...string) client.Client {
	t.Helper()
	return ActAs(t, rest.ImpersonationConfig{UserName: user, Groups: groups})
}

// ActAs returns a client of an administrator who impersonates a user.
func ActAs(t *testing.T, user rest.ImpersonationConfig) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(ControlPlane(t).Config)
	cfg.Impersonate = user
	// With a mapper of its own, the client would need the right to discover kinds.
	return Must(client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme, Mapper: Admin(t).RESTMapper()}))(t)
}

// CertificateClient returns a client of a user with a client certificate.
func CertificateClient(t *testing.T, user string, groups ...string) client.Client {
	t.Helper()
	return ClientOf(t, Must(ControlPlane(t).Env.AddUser(envtest.User{Name: user, Groups: groups}, nil))(t).Config())
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

// WhoIs returns the user that server identifies by pair, over a connection of its own. It presents pair whatever CAs the server names:
// crypto/tls by default would present nothing then, and client-go would keep a transport for each pair.
func WhoIs(ctx context.Context, server *rest.Config, pair *tls.Certificate) (string, error) {
	config := rest.AnonymousClientConfig(server)
	config.QPS = -1
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return "", err
	}
	tlsConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair, nil }
	transport := &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}
	asking, err := authenticationclient.NewForConfigAndClient(config, &http.Client{Transport: transport, Timeout: Patience})
	if err != nil {
		return "", err
	}
	review, err := asking.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	return review.Status.UserInfo.Username, err
}

// Grant binds a ClusterRole to a user for the duration of the test, and waits until the API server knows it.
func Grant(t testing.TB, user, clusterRole string) *rbacv1.ClusterRoleBinding {
	t.Helper()
	return bind(t, clusterRole, rbacv1.UserKind, csr.Requester{Username: user})
}

// GrantJoining grants user the rights to request first certificates of nodes, and to have them approved.
func GrantJoining(t testing.TB, user string) {
	t.Helper()
	Grant(t, user, MayCreate)
	Grant(t, user, MayJoin)
}

// GrantGroup is Grant for a group.
func GrantGroup(t testing.TB, group, clusterRole string) {
	t.Helper()
	bind(t, clusterRole, rbacv1.GroupKind, csr.Requester{Groups: []string{group}})
}

func bind(t testing.TB, clusterRole, kind string, who csr.Requester) *rbacv1.ClusterRoleBinding {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: who.Username + strings.Join(who.Groups, "")}},
	}
	Create(t, Admin(t), binding)
	role := &rbacv1.ClusterRole{}
	NoError(t, Admin(t).Get(t.Context(), client.ObjectKey{Name: clusterRole}, role))
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources { // a rule for paths has none
			resource, subresource, _ := strings.Cut(resource, "/")
			EventuallyAllowed(t, who, authorizationv1.ResourceAttributes{
				Group: rule.APIGroups[0], Resource: resource, Subresource: subresource, Verb: rule.Verbs[0], Name: append(rule.ResourceNames, "")[0],
			}, true)
		}
	}
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

// EventuallyAllowed waits until the API server's authorizer grants who a right, or no longer does.
func EventuallyAllowed(t testing.TB, who csr.Requester, right authorizationv1.ResourceAttributes, want bool) {
	t.Helper()
	Eventually(t, fmt.Sprintf("RBAC of %v", who), func(ctx context.Context) error {
		got, err := authz.SubjectAccess{Client: Admin(t)}.Allowed(ctx, who, right)
		return errors.Join(err, OrError(got == want, "%v: allowed is %t", right, got))
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
