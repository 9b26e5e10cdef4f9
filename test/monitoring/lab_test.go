package monitoring

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
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const (
	namespace = "csr-controller-manager-system"
	account   = "csr-controller-manager"
)

// labConfig has one signer whose CA expires soon, one without a CA, and one for which the manager may not sign.
const labConfig = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
signing:
  secret: csr-controller-manager-system/csr-signer
  signers:
  - {name: example.com/short, certFile: %[1]q, keyFile: %[2]q, usages: [digital signature, server auth]}
  - {name: example.com/forbidden, certFile: %[1]q, keyFile: %[2]q, usages: [digital signature, server auth]}
  - {name: example.com/missing, secret: csr-controller-manager-system/no-such, usages: [digital signature, server auth]}
`

// lab is a control plane with a joiner, who may join nodes, and a stranger, who may only create requests.
type lab struct {
	*cluster.Cluster
	admin, joiner, stranger client.Client

	kubeconfig, config, shortCert string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run the tests with make test")
	}
	started, err := cluster.Start(
		cluster.Token{Token: "joiner-token", User: "joiner", UID: "j-1", Groups: "system:bootstrappers"},
		cluster.Token{Token: "stranger-token", User: "stranger", UID: "s-1", Groups: "strangers"},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := started.Stop(); err != nil {
			t.Error(err)
		}
	})
	l := &lab{Cluster: started, config: filepath.Join(started.Dir, "config.yaml"), shortCert: filepath.Join(started.Dir, "short.crt")}
	l.admin, l.joiner, l.stranger = l.client(t, ""), l.client(t, "joiner-token"), l.client(t, "stranger-token")
	if l.kubeconfig, err = l.WriteKubeconfig("admin", l.Config); err != nil {
		t.Fatal(err)
	}
	l.makeCAs(t)
	l.kubectl(t, "apply", "--validate=strict", "-k", "../../config/rbac")
	l.create(t, l.admin, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "csr-signer"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: l.CA.CertPEM, corev1.TLSPrivateKeyKey: l.CA.KeyPEM},
	})
	l.grant(t)
	return l
}

// client returns a client for the holder of token, or for the administrator.
func (l *lab) client(t *testing.T, token string) client.Client {
	t.Helper()
	cfg := l.Config
	if token != "" {
		cfg = rest.AnonymousClientConfig(l.Config)
		cfg.BearerToken, cfg.QPS = token, -1
	}
	c, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// makeCAs creates the CA that expires in 20 days, and the configuration.
func (l *lab) makeCAs(t *testing.T) {
	t.Helper()
	short, key, err := ca.New(ca.NewOptions{CommonName: "short", Lifetime: 20 * 24 * time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(l.Dir, "short.key")
	write(t, l.shortCert, short.CertificatePEM())
	write(t, keyFile, key)
	write(t, l.config, fmt.Appendf(nil, labConfig, l.shortCert, keyFile))
}

func (l *lab) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), append([]string{"--kubeconfig", l.kubeconfig}, args...)...)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
	return string(output)
}

// applyOperatorObjects validates the objects of config/prometheus for the prometheus-operator with its
// CustomResourceDefinitions.
func (l *lab) applyOperatorObjects(t *testing.T) {
	t.Helper()
	l.kubectl(t, "create", "-f", tool(t, "PROMETHEUS_CRDS"))
	l.kubectl(t, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
	dir := t.TempDir()
	component, err := filepath.Abs("../../config/prometheus")
	if err == nil {
		component, err = filepath.Rel(dir, component)
	}
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, "kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1\ncomponents: [%q]\n", component))
	l.kubectl(t, "apply", "--validate=strict", "-k", dir)
	l.kubectl(t, "-n", namespace, "get", "prometheusrules/csr-controller-manager", "servicemonitors/csr-controller-manager")
}

// grant gives kubelets the roles of the TLS bootstrapping document, and the manager one of its own signers.
func (l *lab) grant(t *testing.T) {
	t.Helper()
	l.create(t, l.admin, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-short"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{"example.com/short", "example.com/missing"}, Verbs: []string{"sign"}}},
	})
	const kubelets = "system:certificates.k8s.io:certificatesigningrequests:"
	for name, binding := range map[string]struct{ role, kind, subject string }{
		"create":   {"system:node-bootstrapper", rbacv1.GroupKind, "system:bootstrappers"},
		"join":     {kubelets + "nodeclient", rbacv1.GroupKind, "system:bootstrappers"},
		"renew":    {kubelets + "selfnodeclient", rbacv1.GroupKind, "system:nodes"},
		"stranger": {"system:node-bootstrapper", rbacv1.UserKind, "stranger"},
		"short":    {"test-short", rbacv1.UserKind, "system:serviceaccount:" + namespace + ":" + account},
	} {
		l.create(t, l.admin, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "test-" + name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: binding.kind, Name: binding.subject}},
		})
	}
}

// revoke removes the rights to approve and delete from the manager. It keeps the rights to watch.
func (l *lab) revoke(t *testing.T) {
	t.Helper()
	l.kubectl(t, "delete", "clusterrolebinding", "csr-approver", "csr-cleaner")
}

// startManager runs the real binary as the ServiceAccount that config/rbac binds.
func (l *lab) startManager(t *testing.T, name, metrics string) *cluster.Process {
	t.Helper()
	binary, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	token := &authenticationv1.TokenRequest{}
	if err := l.admin.SubResource("token").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}, token); err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(l.Config)
	cfg.BearerToken = token.Status.Token
	kubeconfig, err := l.WriteKubeconfig(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	m, err := l.StartProcess(name, binary, "--config", l.config, "--kubeconfig", kubeconfig,
		"--leader-elect-resource-namespace", namespace,
		"--health-probe-bind-address", freeAddress(t), "--metrics-bind-address", metrics)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Kill()
		if t.Failed() {
			t.Logf("the end of the %s's log:\n%s", name, m.Tail(20))
		}
	})
	return m
}

// round creates requests for every outcome, and returns the request that will be issued. The others are never
// approved, fail, are cut short, may not be signed, or wait for a CA.
func (l *lab) round(t *testing.T, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	const kubelets = certificatesv1.KubeAPIServerClientKubeletSignerName
	node := request(t, name+"-joins", kubelets, "client auth")
	l.create(t, l.joiner, node)
	l.create(t, l.stranger, request(t, name+"-stays", kubelets, "client auth"))
	for suffix, signer := range map[string]string{
		"-fails": certificatesv1.KubeAPIServerClientSignerName, "-short": "example.com/short",
		"-forbidden": "example.com/forbidden", "-missing": "example.com/missing",
	} {
		obj := request(t, name+suffix, signer, "server auth")
		l.create(t, l.admin, obj)
		l.approve(t, obj)
	}
	serving := servingRequest(t, name+"-serves")
	l.create(t, l.admin, serving)
	l.approve(t, serving)
	return node
}

// approve approves obj by hand, where the manager is not configured to.
func (l *lab) approve(t *testing.T, obj *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Approved by a test.", time.Time{})
	if err := l.admin.SubResource("approval").Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// store stores a request of a stranger that is hours old.
func (l *lab) store(t *testing.T, name string, hours time.Duration) {
	t.Helper()
	obj := request(t, name, certificatesv1.KubeAPIServerClientKubeletSignerName, "client auth")
	obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	obj.UID, obj.CreationTimestamp = types.UID(name), metav1.NewTime(time.Now().Add(-hours*time.Hour))
	obj.Spec.Username = "stranger"
	if err := l.Store(t.Context(), "certificatesigningrequests/"+name, obj); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) create(t *testing.T, c client.Client, obj client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// issued waits for the certificate of obj.
func (l *lab) issued(t *testing.T, obj *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	eventually(t, obj.Name, func(ctx context.Context) error {
		if err := l.admin.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		if csr.StateOf(obj) != csr.Issued {
			return errors.New("it is not issued")
		}
		return nil
	})
}

// breakShortCA replaces the CA that expires soon by an invalid one. The manager continues with the old CA.
func (l *lab) breakShortCA(t *testing.T) {
	t.Helper()
	write(t, l.shortCert, []byte("not PEM\n"))
}

// request returns a request of a node, with the name of the node.
func request(t *testing.T, name, signer string, usage certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return requestFor(t, name, signer, usage, nil)
}

// servingRequest returns a request for the serving certificate of a node.
func servingRequest(t *testing.T, node string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	obj := requestFor(t, node, certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth, []string{node})
	obj.Name += "-serving"
	return obj
}

func requestFor(t *testing.T, name, signer string, usage certificatesv1.KeyUsage, dnsNames []string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}, DNSNames: dnsNames,
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}
}
