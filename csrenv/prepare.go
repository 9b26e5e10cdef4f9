package csrenv

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// CA is a signing certificate and its key, in PEM.
type CA struct{ CertPEM, KeyPEM []byte }

// NewCA creates a self-signed CA.
func NewCA() (*CA, error) {
	authority, key, err := ca.New(ca.NewOptions{CommonName: "csrenv", Lifetime: ca.DefaultAuthorityLifetime}, time.Now())
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

// Prepare creates a CA and configures env's API server to trust client certificates of that CA, beside those of
// env.AddUser. The API server must not run yet. Prepare sets the API server's Authn, so a suite cannot set its own.
func Prepare(env *envtest.Environment) (*CA, error) {
	apiServer := env.ControlPlane.GetAPIServer()
	if apiServer.Authn != nil {
		return nil, errors.New("the environment is started or has its own Authn: call Prepare first, and set no Authn")
	}
	signing, err := NewCA()
	if err != nil {
		return nil, err
	}
	users, usersKey, err := ca.New(
		ca.NewOptions{CommonName: "csrenv-users", Lifetime: ca.DefaultAuthorityLifetime}, time.Now())
	if err != nil {
		return nil, err
	}
	authority, err := ca.Load(users.CertificatePEM(), usersKey, nil)
	if err != nil {
		return nil, err
	}
	apiServer.Authn = &authn{users: authority, trusted: slices.Concat(users.CertificatePEM(), signing.CertPEM)}
	return signing, nil
}

// authn is envtest's authentication by client certificate, with more than one CA. It implements envtest.Authn.
type authn struct {
	users   *ca.Authority
	trusted []byte
	file    string
}

func (a *authn) Configure(workDir string, args *envtest.Arguments) error {
	a.file = filepath.Join(workDir, "csrenv-client-ca.crt")
	args.Set("client-ca-file", a.file)
	return nil
}

func (a *authn) Start() error { return os.WriteFile(a.file, a.trusted, 0o640) }

func (a *authn) Stop() error { return nil }

func (a *authn) AddUser(user envtest.User, base *rest.Config) (*rest.Config, error) {
	key, keyPEM, err := newKey()
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

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
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
