package csrenv

import (
	"cmp"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// CA is a signing certificate and its key, in PEM.
type CA struct{ CertPEM, KeyPEM []byte }

// NewCA creates a self-signed CA. Without an algorithm, its key is of ca.ECDSAP256.
func NewCA(algorithm ...ca.Algorithm) (*CA, error) {
	authority, key, err := ca.New(ca.NewOptions{CommonName: "csrenv", Algorithm: cmp.Or(algorithm...)}, time.Now())
	if err != nil {
		return nil, err
	}
	return &CA{CertPEM: authority.CertificatePEM(), KeyPEM: key}, nil
}

// check returns why c cannot sign at the time of the clock by, or nil; a nil clock is the real one.
func (c *CA) check(by clock.PassiveClock) error {
	authority, err := ca.Load(c.CertPEM, c.KeyPEM, nil)
	if err != nil {
		return err
	}
	if by == nil {
		by = clock.RealClock{}
	}
	return authority.Usable(by.Now())
}

// Prepare creates a CA with NewCA and configures env's API server to trust client certificates of that CA, beside those of env.AddUser.
// Call it before env.Start, and after setting an Authn of your own, which Prepare keeps: it adds the CA to the client CA file that
// the Authn configures. That file must exist when Start of the Authn returns, and its later changes have no effect.
func Prepare(env *envtest.Environment, algorithm ...ca.Algorithm) (*CA, error) {
	if env.Config != nil || env.UseExistingCluster != nil && *env.UseExistingCluster {
		return nil, errors.New("the environment is started or is an existing cluster: call Prepare first, and let envtest start the API server")
	}
	signing, err := NewCA(algorithm...)
	if err != nil {
		return nil, err
	}
	apiServer := env.ControlPlane.GetAPIServer()
	inner := apiServer.Authn
	if inner == nil {
		if inner, err = newCertAuthn(); err != nil {
			return nil, err
		}
	}
	apiServer.Authn = &authn{Authn: inner, signing: signing.CertPEM}
	return signing, nil
}

// clientCAFile is the flag of the API server that names the file with the CAs of clients.
const clientCAFile = "client-ca-file"

// authn adds a CA to those that another Authn trusts.
type authn struct {
	envtest.Authn
	signing      []byte
	theirs, file string // the file of the other Authn, empty if it has none, and the file with both
}

// Configure implements envtest.Authn.
func (a *authn) Configure(workDir string, args *envtest.Arguments) error {
	if err := a.Authn.Configure(workDir, args); err != nil {
		return err
	}
	files := args.Get(clientCAFile).Get(nil) // the last one counts; if the environment starts again, it may be ours
	if len(files) > 0 && files[len(files)-1] != a.file {
		a.theirs = files[len(files)-1]
	}
	a.file = filepath.Join(workDir, "csrenv-client-ca.crt")
	args.Set(clientCAFile, a.file)
	return nil
}

// Start implements envtest.Authn.
func (a *authn) Start() error {
	if err := a.Authn.Start(); err != nil {
		return err
	}
	var trusted []byte
	if a.theirs != "" {
		var err error
		if trusted, err = os.ReadFile(a.theirs); err != nil {
			return fmt.Errorf("read the --%s of the environment's own Authn, which its Start must write: %w", clientCAFile, err)
		}
	}
	return os.WriteFile(a.file, slices.Concat(trusted, []byte("\n"), a.signing), 0o640) //nolint:gosec // the folder is envtest's own
}

// certAuthn is authentication by client certificate, as envtest's default, which it does not export. Its CA is not the signing CA,
// which a test may rotate.
type certAuthn struct {
	users *ca.Authority
	file  string
}

func newCertAuthn() (*certAuthn, error) {
	users, _, err := ca.New(ca.NewOptions{CommonName: "csrenv-users"}, time.Now())
	return &certAuthn{users: users}, err
}

func (a *certAuthn) Configure(workDir string, args *envtest.Arguments) error {
	a.file = filepath.Join(workDir, "csrenv-users-ca.crt")
	args.Set(clientCAFile, a.file)
	return nil
}

func (a *certAuthn) Start() error { return os.WriteFile(a.file, a.users.CertificatePEM(), 0o640) }

func (a *certAuthn) Stop() error { return nil }

func (a *certAuthn) AddUser(user envtest.User, base *rest.Config) (*rest.Config, error) {
	key, keyPEM, err := ca.NewKeyLike(nil)
	if err != nil {
		return nil, err
	}
	profile, err := ca.NewProfile(ca.ProfileConfig{})
	if err != nil {
		return nil, err
	}
	issued, err := a.users.Issue(profile, ca.Request{
		PublicKey:   key.Public(),
		Subject:     pkix.Name{CommonName: user.Name, Organization: user.Groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, time.Now())
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %q: %w", user.Name, err)
	}
	cfg := rest.CopyConfig(base)
	cfg.CertData, cfg.KeyData = issued.PEM, keyPEM
	return cfg, nil
}

// kubeletBindings are the bindings that Kubernetes' TLS bootstrapping document tells an administrator to create. Every
// cluster has the roles (Kubernetes plugin/pkg/auth/authorizer/rbac/bootstrappolicy).
var kubeletBindings = []struct{ name, role, group string }{
	{"csrenv:create-csrs-for-bootstrapping", "system:node-bootstrapper", "system:bootstrappers"},
	{"csrenv:create-csrs-for-renewal", "system:node-bootstrapper", "system:nodes"}, // usually the Node authorizer permits
	{"csrenv:approve-node-client",
		"system:certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers"},
	{"csrenv:approve-self-node-client",
		"system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"},
}

// prepareCluster checks the rights of admin, and creates kubeletBindings unless they are skipped.
func prepareCluster(ctx context.Context, admin kubernetes.Interface, skipRBAC bool) error {
	// Without this right, the manager would retry for minutes.
	if _, err := admin.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return fmt.Errorf("list requests: %w; csrenv needs the rest.Config of an administrator", err)
	}
	if skipRBAC {
		return nil
	}
	for _, binding := range kubeletBindings {
		obj := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: binding.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: binding.group}},
		}
		if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, obj, metav1.CreateOptions{}); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("bind %s to %s: %w", binding.role, binding.group, err)
		}
	}
	return nil
}
