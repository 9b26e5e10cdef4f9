package integration

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

const systemNamespace = "csr-controller-manager-system"

// managerAccount is the ServiceAccount that config/rbac binds.
const managerAccount = "csr-controller-manager"

// signerAccount is the ServiceAccount of the signer in config/overlays/split.
const signerAccount = "csr-signer"

// installRBAC applies config/rbac.
func installRBAC(t testing.TB) {
	t.Helper()
	apply(t, "rbac")
}

// apply creates the missing objects of a folder of config. At the end of the test it removes the bindings, because
// the next test on this control plane may test a right that they grant.
func apply(t testing.TB, folder string) {
	t.Helper()
	applyAll(t, rendered(t, folder))
}

func applyAll(t testing.TB, all []*unstructured.Unstructured) {
	t.Helper()
	for _, obj := range createMissing(t, admin(t), all) {
		if isBinding(obj) {
			t.Cleanup(func() {
				if err := client.IgnoreNotFound(admin(t).Delete(context.Background(), obj)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// createMissing creates the objects in all that do not exist, and returns them.
func createMissing(t testing.TB, c client.Client, all []*unstructured.Unstructured) (created []*unstructured.Unstructured) {
	t.Helper()
	for _, obj := range all {
		switch err := c.Create(t.Context(), obj); {
		case err == nil:
			created = append(created, obj)
		case !apierrors.IsAlreadyExists(err):
			t.Fatal(err)
		}
	}
	return created
}

// rolesForSecret returns the roles of a signing CA in the Secret called name, bound to holder. They are a copy of those that
// config/rotation/kubelet-serving ships for its Secret, as that folder says.
func rolesForSecret(t testing.TB, name, holder string) []*unstructured.Unstructured {
	t.Helper()
	all := renamed(t, rendered(t, "rotation/kubelet-serving"), "csr-kubelet-serving-ca", name)
	if holder == signerAccount { // the other binding is for csr-rotation
		all = slices.DeleteFunc(all, func(obj *unstructured.Unstructured) bool {
			return isBinding(obj) && obj.GetName() == name+"-rotation"
		})
	}
	return boundTo(t, holder, all)
}

// maySign grants holder the right to sign for custom signers, as docs/how-to/serve-a-custom-signer.md does.
func maySign(t testing.TB, holder string, signers ...string) {
	t.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"signers"}, ResourceNames: signers, Verbs: []string{"sign"},
		}},
	}
	create(t, admin(t), role)
	grant(t, serviceaccount.MakeUsername(systemNamespace, holder), role.Name)
}

// renamed returns all, with the text to in the place of from.
func renamed(t testing.TB, all []*unstructured.Unstructured, from, to string) []*unstructured.Unstructured {
	t.Helper()
	for _, obj := range all {
		data, err := obj.MarshalJSON()
		if err == nil {
			err = obj.UnmarshalJSON(bytes.ReplaceAll(data, []byte(from), []byte(to)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// rendered returns the objects of a folder of config.
func rendered(t testing.TB, folder string) (all []*unstructured.Unstructured) {
	t.Helper()
	render := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "kustomize", filepath.Join("..", "..", "config", folder))
	render.Stderr = os.Stderr
	data, err := render.Output()
	if err != nil {
		t.Fatal(err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		obj := &unstructured.Unstructured{}
		if err := documents.Decode(obj); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, obj)
	}
}

// managerConfig installs config/rbac and returns the configuration of its ServiceAccount, once its roles are in effect.
func managerConfig(t testing.TB) *rest.Config {
	t.Helper()
	installRBAC(t)
	cfg := serviceAccountConfig(t)
	awaitRights(t, cfg, false)
	return cfg
}

// roleConfig returns the configuration of the ServiceAccount of one controller. The account has only the roles that
// config/overlays/split binds to it, and those in more folders of config. roleConfig waits until they are in effect.
func roleConfig(t testing.TB, controller string, more ...string) *rest.Config {
	t.Helper()
	name := "csr-" + controller
	var all []*unstructured.Unstructured
	for _, folder := range more { // first, so that they are in effect when the others are
		all = append(all, rendered(t, folder)...)
	}
	for _, obj := range rendered(t, "overlays/split") {
		switch obj.GetKind() {
		case "Namespace", "ServiceAccount", "ClusterRole", "Role":
			all = append(all, obj)
		case "ClusterRoleBinding", "RoleBinding":
			if slices.Contains(subjectsOf(t, obj), accountCalled(name)) {
				all = append(all, obj)
			}
		}
	}
	for _, obj := range boundTo(t, name, all) {
		if isBinding(obj) {
			obj.SetName(obj.GetName() + "-for-" + name) // config/rbac may be installed too
		}
	}
	applyAll(t, all)
	cfg := tokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name}})
	awaitRights(t, cfg, false, "--controllers="+controller, "--leader-elect-resource-name="+name)
	return cfg
}

func isBinding(obj *unstructured.Unstructured) bool {
	return strings.HasSuffix(obj.GetKind(), "RoleBinding")
}

func accountCalled(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: systemNamespace, Name: name}
}

// boundTo makes the ServiceAccount called holder the only subject of each binding in all, and returns all.
func boundTo(t testing.TB, holder string, all []*unstructured.Unstructured) []*unstructured.Unstructured {
	t.Helper()
	binding, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&rbacv1.RoleBinding{Subjects: []rbacv1.Subject{accountCalled(holder)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range all {
		if isBinding(obj) {
			obj.Object["subjects"] = runtime.DeepCopyJSONValue(binding["subjects"])
		}
	}
	return all
}

func subjectsOf(t testing.TB, obj *unstructured.Unstructured) []rbacv1.Subject {
	t.Helper()
	binding := rbacv1.ClusterRoleBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &binding); err != nil {
		t.Fatal(err)
	}
	return binding.Subjects
}

// managerConfigOn is managerConfig for the control plane of cfg, and keeps the bindings. For a manager that rotates it also
// installs config/rotation.
func managerConfigOn(t testing.TB, cfg *rest.Config, admin client.Client, rotates bool) *rest.Config {
	t.Helper()
	createMissing(t, admin, rendered(t, "rbac"))
	if rotates {
		createMissing(t, admin, rendered(t, "rotation"))
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: managerAccount}}
	cfg = accountConfig(t, cfg, admin, account)
	awaitRights(t, cfg, rotates)
	return cfg
}

// awaitRights waits until the API server grants cfg's user what a manager with standardArgs and args needs.
func awaitRights(t testing.TB, cfg *rest.Config, rotates bool, args ...string) {
	t.Helper()
	c, err := config.Load(slices.Concat(standardArgs, args))
	if err != nil {
		t.Fatal(err)
	}
	c.Rotation.Enabled = rotates
	rights := controllers.Rights(c, controllers.LeaseNamespace(c))
	as, err := reviewsv1.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the roles are in effect", func(ctx context.Context) error {
		for _, result := range check.Rights(ctx, as.SelfSubjectAccessReviews(), rights) {
			if result.Status != check.OK {
				return fmt.Errorf("%s: %s", result.Subject, result.Evidence)
			}
		}
		return nil
	})
}

// serviceAccountConfig returns a configuration for the ServiceAccount that config/rbac binds.
func serviceAccountConfig(t testing.TB) *rest.Config {
	t.Helper()
	return tokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: managerAccount}})
}

// tokenOf returns a configuration with a token of account.
func tokenOf(t testing.TB, account *corev1.ServiceAccount) *rest.Config {
	t.Helper()
	return accountConfig(t, controlPlane(t).Config, admin(t), account)
}

// clientOf returns a client of cfg's user.
func clientOf(t testing.TB, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// accountConfig is tokenOf for the control plane of cfg.
func accountConfig(t testing.TB, cfg *rest.Config, admin client.Client, account *corev1.ServiceAccount) *rest.Config {
	t.Helper()
	token := &authenticationv1.TokenRequest{}
	if err := admin.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	cfg = rest.AnonymousClientConfig(cfg)
	cfg.BearerToken = token.Status.Token
	return cfg
}

// forbidAdministrator fails the test if a manager with cfg would run as the administrator: with the administrator's
// certificate, or with no credential at all, to which a proxy of test/faults adds that certificate.
func forbidAdministrator(t testing.TB, cfg *rest.Config) {
	t.Helper()
	if cfg.BearerToken != "" {
		return
	}
	if block, _ := pem.Decode(cfg.CertData); block != nil {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err == nil && !slices.Contains(cert.Subject.Organization, user.SystemPrivilegedGroup) {
			return
		}
	}
	t.Fatal("this manager would run as the administrator: use managerConfig or roleConfig, and the shipped roles")
}

// newManager returns a manager that runs in this process as cfg's user.
func newManager(t testing.TB, cfg *rest.Config, options manager.Options) manager.Manager {
	t.Helper()
	forbidAdministrator(t, cfg)
	unnamed := true // several managers run in one process
	options.Controller.SkipNameValidation = &unnamed
	options.Metrics, options.HealthProbeBindAddress = metricsserver.Options{BindAddress: "0"}, "0"
	mgr, err := manager.New(cfg, options)
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// process is a running manager.
type process struct {
	*cluster.Process
	probes  string
	metrics string
}

// standardArgs are the flags of every manager in these tests. Flags behind them win.
var standardArgs = []string{"--signing-secret", systemNamespace + "/csr-signer", "--leader-elect-resource-namespace", systemNamespace}

// startManager runs the real binary as cfg's user, and stops it at the end of the test.
func startManager(t *testing.T, cfg *rest.Config, args ...string) *process {
	t.Helper()
	return startNamed(t, strings.ReplaceAll(t.Name(), "/", "-"), cfg, args...)
}

// startNamed is startManager for tests with several users. Each needs a name of its own.
func startNamed(t *testing.T, name string, cfg *rest.Config, args ...string) *process {
	t.Helper()
	forbidAdministrator(t, cfg)
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := controlPlane(t).WriteKubeconfig(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{probes: freeAddress(t), metrics: freeAddress(t)}
	p.Process, err = controlPlane(t).StartProcess(name, path, slices.Concat([]string{
		"--kubeconfig", kubeconfig, "-v", "1", "--health-probe-bind-address", p.probes, "--metrics-bind-address", p.metrics,
	}, standardArgs, args)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of the manager's log:\n%s", p.Tail(100))
		}
		if log := p.log(t); strings.Contains(log, "DATA RACE") {
			t.Errorf("data race in the manager:\n%s", log)
		}
	})
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := cluster.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// log returns the output of the manager.
func (p *process) log(t *testing.T) string {
	t.Helper()
	text, err := p.Log()
	if err != nil {
		t.Error(err)
	}
	return text
}

// answers waits until a page has status and contains each of parts.
func (p *process) answers(t *testing.T, address, path string, status int, parts ...string) {
	t.Helper()
	eventually(t, path, func(ctx context.Context) error {
		got, body := cluster.Get(ctx, address, path)
		if got != status {
			return fmt.Errorf("status %d, want %d: %s", got, status, body)
		}
		for _, part := range parts {
			if !strings.Contains(body, part) {
				return fmt.Errorf("%q is not in: %s", part, body)
			}
		}
		return nil
	})
}

func signingSecret(cert, key []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-signer"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}
}
