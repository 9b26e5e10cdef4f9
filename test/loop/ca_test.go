package loop

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	certificates "k8s.io/client-go/util/certificate"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// mayCreateCA binds the role of config/create-ca to holder.
func mayCreateCA(t *testing.T, holder string) {
	t.Helper()
	kit.ApplyAll(t, kit.BoundTo(t, holder, kit.Rendered(t, "create-ca")))
	for _, obj := range []client.Object{&rbacv1.RoleBinding{}, &rbacv1.Role{}} {
		obj.SetNamespace(kit.SystemNamespace)
		obj.SetName("csr-create-ca")
		t.Cleanup(func() {
			if err := kit.Admin(t).Delete(context.Background(), obj); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCreateIfMissing runs two managers under the shipped roles that create one CA. At first they may not, and report
// that. If the Secret is deleted while its CA signs, no new CA is created.
func TestCreateIfMissing(t *testing.T) {
	kit.Alone(t)
	kit.InstallRBAC(t)
	name := client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-signer"}
	if err := client.IgnoreNotFound(kit.Admin(t).Delete(t.Context(), secretCalled(name))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.IgnoreNotFound(kit.Admin(t).Delete(context.Background(), secretCalled(name))) })
	t.Cleanup(func() { _ = client.IgnoreNotFound(release(context.Background(), t, name)) })
	creating := func(o *controllers.Options) {
		signingFrom(keypair.Secret(name))(o)
		for _, one := range o.Signer.Signers {
			one.KeyPair.Create = &keypair.Creation{Algorithm: ca.ECDSAP384, Lifetime: 24 * time.Hour}
		}
	}
	kit.StartLoop(t, csrenv.Options{Customize: creating})
	waiting := kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "waiting")), csr.Approved)
	kit.HasEvent(t, secretCalled(name), "CAMissing", "can't be created", "forbidden")
	mayCreateCA(t, kit.SignerAccount)
	kit.StartLoop(t, csrenv.Options{Customize: creating}) // it creates the CA at once; the other retries later

	secret := secretCalled(name)
	kit.Reaches(t, waiting, csr.Issued)
	if err := kit.Admin(t).Get(t.Context(), name, secret); err != nil {
		t.Fatal(err)
	}
	made := &csrenv.CA{CertPEM: secret.Data["tls.crt"], KeyPEM: secret.Data["tls.key"]}
	kit.IssuedBy(t, waiting, made)
	if authority, err := ca.Load(made.CertPEM, made.KeyPEM, secret.Data["ca.crt"]); err != nil || !strings.HasPrefix(authority.Certificate().Subject.CommonName, "csr-controller-manager:csr-signer:") {
		t.Errorf("made %s, error %v", secret.Data["tls.crt"], err)
	}
	kit.Eventually(t, "the CA is told of", func(ctx context.Context) error {
		for _, event := range kit.EventsOf(ctx, t, secret) {
			if event.Reason == "CACreated" {
				return nil
			}
		}
		return errors.New("it is not")
	})
	rejected := func() int {
		return kit.Counted(t, "csr_signer_ca_reloads_total", map[string]string{"result": "rejected"})
	}
	before := rejected()
	survivesDeletion(t, secret, made)
	kubeconfig, saved := saveSecret(t, name)
	if err := release(t.Context(), t, name); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "both notice the loss", func(context.Context) error {
		if got := rejected() - before; got < 2 {
			return fmt.Errorf("%d did", got)
		}
		return nil
	})
	kit.IssuedBy(t, kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "after")), csr.Issued), made)
	if err := kit.Admin(t).Get(t.Context(), name, secret); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("it is back: error %v", err)
	}
	putBack(t, kubeconfig, saved)
	if err := kit.Admin(t).Get(t.Context(), name, secret); err != nil || !bytes.Equal(secret.Data["tls.key"], made.KeyPEM) || !slices.Contains(secret.Finalizers, keypair.Finalizer) {
		t.Errorf("what was put back: error %v, finalizers %q", err, secret.Finalizers)
	}
}

// saveSecret saves a Secret with the command of docs/how-to/back-up-the-ca.md.
func saveSecret(t *testing.T, name client.ObjectKey) (kubeconfig, file string) {
	t.Helper()
	kubeconfig, err := kit.ControlPlane(t).WriteKubeconfig("saves", kit.ControlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "csr-signer.yaml")
	saved := kit.Kubectl(t, kubeconfig, "-n", name.Namespace, "get", "secret", name.Name, "-o", "yaml")
	if err := os.WriteFile(file, []byte(saved), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, file
}

// putBack runs the restore command of docs/how-to/back-up-the-ca.md.
func putBack(t *testing.T, kubeconfig, file string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/how-to/back-up-the-ca.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^sed -E .* csr-signer.yaml \| kubectl create -f -$`).FindString(string(page))
	script := strings.NewReplacer(" csr-signer.yaml ", " "+file+" ", "kubectl ", filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")+" --kubeconfig="+kubeconfig+" ").Replace(line)
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil || line == "" {
		t.Fatalf("%q: %v\n%s", script, err, out)
	}
}

// survivesDeletion deletes secret, which holds the only copy of made. The manager continues to use it, and an
// administrator can still save it.
func survivesDeletion(t *testing.T, secret *corev1.Secret, made *csrenv.CA) {
	t.Helper()
	if err := kit.Admin(t).Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	name := client.ObjectKeyFromObject(secret)
	if err := kit.Admin(t).Get(t.Context(), name, secret); err != nil || secret.DeletionTimestamp == nil || !bytes.Equal(secret.Data["tls.key"], made.KeyPEM) {
		t.Fatalf("the Secret with the only copy of the CA: %v, deleted %v", err, secret.DeletionTimestamp)
	}
	kit.IssuedBy(t, kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "deleted")), csr.Issued), made)
}

// release removes the finalizer of the Secret with the command of docs/how-to/back-up-the-ca.md.
func release(ctx context.Context, t *testing.T, name client.ObjectKey) error {
	return kit.Admin(t).Patch(ctx, secretCalled(name), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
}

func secretCalled(name client.ObjectKey) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
}

// chainOf makes a root, a CA below it, and a signing CA below that, each in PEM, and the key of the last.
func chainOf(t *testing.T) (root, upper, lower, keyPEM []byte) {
	t.Helper()
	var certs [][]byte
	var parent *x509.Certificate
	var parentKey any
	for i, name := range []string{"root", "upper", "lower"} {
		key := kit.NewKey(t)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name + " of " + t.Name()},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		}
		if parent == nil {
			parent, parentKey = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		parent, parentKey, keyPEM = template, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	}
	return certs[0], certs[1], certs[2], keyPEM
}

// TestIntermediates gets a serving and a client certificate from an intermediate CA with client-go's certificate
// manager, which kubelets use. It uses both in a handshake in which each side knows only the root.
func TestIntermediates(t *testing.T) {
	kit.Parallel(t)
	root, upper, lower, keyPEM := chainOf(t)
	secret := kit.SigningSecret(slices.Concat(lower, upper), keyPEM)
	secret.Data["ca.crt"] = root
	kit.Create(t, kit.Admin(t), secret)
	kit.StartLoop(t, csrenv.Options{Customize: signingFrom(keypair.Secret(client.ObjectKeyFromObject(secret)))})

	serving := managed(t, certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth, "chained.example.com")
	inUse := managed(t, certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(root)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s by %d", r.TLS.PeerCertificates[0].Subject.CommonName, len(r.TLS.VerifiedChains[0]))
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{*serving}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{*inUse}, RootCAs: pool, ServerName: "chained.example.com", MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if want := "system:node:chained by 4"; string(said) != want {
		t.Errorf("the server saw %q, want %q", said, want)
	}
}

// managed runs client-go's certificate manager until it has a certificate of the node called chained.
func managed(t *testing.T, signerName string, usage certificatesv1.KeyUsage, dnsNames ...string) *tls.Certificate {
	t.Helper()
	store, err := certificates.NewFileStore("kubelet-"+string(usage[:6]), t.TempDir(), t.TempDir(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	manager, err := certificates.NewManager(&certificates.Config{
		ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) {
			return kubernetes.NewForConfig(kit.ControlPlane(t).Config)
		},
		Template: &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: csr.NodeUserPrefix + "chained", Organization: []string{csr.NodeGroup}}, DNSNames: dnsNames,
		},
		SignerName: signerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}, CertificateStore: store,
	})
	if err != nil {
		t.Fatal(err)
	}
	manager.Start()
	defer manager.Stop()
	approved := map[string]bool{}
	kit.Eventually(t, "a certificate for "+signerName, func(ctx context.Context) error {
		if manager.Current() != nil {
			return nil
		}
		requests := &certificatesv1.CertificateSigningRequestList{}
		if err := kit.Admin(t).List(ctx, requests); err != nil {
			return err
		}
		for i := range requests.Items {
			obj := &requests.Items[i]
			serving := signerName == certificatesv1.KubeletServingSignerName // the loop approves the others
			if serving && obj.Spec.SignerName == signerName && csr.StateOf(obj) == csr.Pending && !approved[obj.Name] && isFor(obj, "chained") {
				approved[obj.Name] = true
				kit.Approve(t, obj)
			}
		}
		return errors.New("none yet")
	})
	current, err := store.Current()
	if err != nil {
		t.Fatal(err)
	}
	if len(current.Certificate) != 3 {
		t.Errorf("%d certificates in the file, want the leaf and two CAs", len(current.Certificate))
	}
	return current
}

func isFor(obj *kit.Request, node string) bool {
	req, err := csr.Parse(obj)
	return err == nil && req.Cert.Subject.CommonName == csr.NodeUserPrefix+node
}
