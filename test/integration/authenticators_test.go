package integration

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestEveryAuthenticatorWorks joins with each kind of credential of the TLS bootstrapping document, through a binding
// to its group. The approver knows none of them.
func TestEveryAuthenticatorWorks(t *testing.T) {
	parallel(t)
	startLoop(t, csrenv.Options{})
	for name, test := range map[string]struct {
		group  string
		config func(*testing.T) *rest.Config
	}{
		"bootstrap token":    {"system:bootstrappers", bootstrapToken},
		"token file":         {"joiners", func(t *testing.T) *rest.Config { return withToken(t, "joiner-token") }},
		"ServiceAccount":     {"system:serviceaccounts:kube-system", serviceAccountToken},
		"client certificate": {"joiners-by-certificate", clientCertificate},
	} {
		t.Run(name, func(t *testing.T) {
			for _, role := range []string{mayCreate, mayJoin} {
				create(t, admin(t), &rbacv1.ClusterRoleBinding{
					ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
					RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
					Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: test.group}},
				})
			}
			joiner, err := client.New(test.config(t), client.Options{Scheme: clientgoscheme.Scheme})
			if err != nil {
				t.Fatal(err)
			}
			var obj *request
			eventually(t, "the credential works", func(ctx context.Context) error {
				obj = nodeRequest(t, "any")
				return joiner.Create(ctx, obj)
			})
			t.Cleanup(func() { _ = admin(t).Delete(context.Background(), obj) })
			cert := leaf(t, reaches(t, obj, csr.Issued))
			if cert.Subject.CommonName != "system:node:any" {
				t.Errorf("certificate is for %q", cert.Subject.CommonName)
			}
		})
	}
}

func withToken(t *testing.T, token string) *rest.Config {
	cfg := rest.AnonymousClientConfig(controlPlane(t).Config)
	cfg.BearerToken = token
	return cfg
}

func bootstrapToken(t *testing.T) *rest.Config {
	t.Helper()
	create(t, admin(t), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-abcdef"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		},
	})
	return withToken(t, "abcdef.0123456789abcdef")
}

func serviceAccountToken(t *testing.T) *rest.Config {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "node-bootstrapper"}}
	create(t, admin(t), account)
	token := &authenticationv1.TokenRequest{}
	if err := admin(t).SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	return withToken(t, token.Status.Token)
}

func clientCertificate(t *testing.T) *rest.Config {
	t.Helper()
	user, err := controlPlane(t).Env.AddUser(envtest.User{Name: "installer", Groups: []string{"joiners-by-certificate"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return user.Config()
}

// TestCustomSigner serves a custom signer, with its own CA and usages, beside Kubernetes' signers.
func TestCustomSigner(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	own := newCA(t)
	write(t, filepath.Join(dir, "ca.crt"), own.CertPEM)
	write(t, filepath.Join(dir, "ca.key"), own.KeyPEM)
	file := filepath.Join(dir, "config.yaml")
	write(t, file, []byte(os.Expand(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
controllers: ["*", -approver]
signing:
  secret: csr-controller-manager-system/csr-signer
  signers:
  - name: example.com/webhook
    certFile: $DIR/ca.crt
    keyFile: $DIR/ca.key
    usages: [digital signature, server auth]
    duration: 1h
    maxDuration: 2h
`, func(string) string { return dir })))
	maySign(t, managerAccount, "example.com/webhook")
	installRBAC(t)
	secret := signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM)
	create(t, admin(t), secret)
	startManager(t, managerConfig(t), "--leader-elect=false", "--config", file)
	ask := func(signer string, usage certificatesv1.KeyUsage) *request {
		obj := createRequest(t, admin(t), nodeRequest(t, "", func(obj *request) {
			obj.Spec.SignerName, obj.Spec.Usages = signer, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}
			obj.Spec.Request = payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "hook"}, DNSNames: []string{"hook.default.svc"}})
		}))
		approve(t, obj)
		return obj
	}
	issued := reaches(t, ask("example.com/webhook", certificatesv1.UsageServerAuth), csr.Issued)
	issuedBy(t, issued, own)
	if cert := leaf(t, issued); cert.NotAfter.Sub(cert.NotBefore) != time.Hour+5*time.Minute || cert.DNSNames[0] != "hook.default.svc" {
		t.Errorf("certificate lives for %s, names %q", cert.NotAfter.Sub(cert.NotBefore), cert.DNSNames)
	}
	failed := reaches(t, ask("example.com/webhook", certificatesv1.UsageClientAuth), csr.Failed).Status.Conditions[1]
	const message = `usage "client auth" is not permitted: signer example.com/webhook permits ["digital signature" "server auth"]`
	if failed.Reason != "UsagesNotPermitted" || failed.Message != message {
		t.Errorf("Failed with %s: %s", failed.Reason, failed.Message)
	}
	issuedBy(t, reaches(t, ask(certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageClientAuth), csr.Issued), controlPlane(t).CA)
	foreign := ask("example.com/somebody-elses", certificatesv1.UsageServerAuth)
	reaches(t, ask("example.com/webhook", certificatesv1.UsageServerAuth), csr.Issued)
	if got := csr.StateOf(reload(t, foreign)); got != csr.Approved {
		t.Errorf("another signer's request is %s, want Approved", got)
	}
}
