// Package kubelet gets client certificates as a kubelet does. It bootstraps with a request whose name depends on its key
// (Kubernetes pkg/kubelet/certificate/bootstrap), and then rotates with client-go's certificate manager
// (pkg/kubelet/certificate). It runs no pods.
package kubelet

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	csrutil "k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// joinTime bounds the wait for a certificate.
const joinTime = 30 * time.Second

// Node is a machine that joins a cluster.
type Node struct {
	// Name is the name of the Node, without system:node:.
	Name string
	// Dir holds certificates and their keys, like a kubelet's --cert-dir.
	Dir string
	// Bootstrap reaches the API server with the credentials of the bootstrap kubeconfig.
	Bootstrap *rest.Config
	// Key, if set, is the key of the first certificate. Otherwise it is an ECDSA key.
	Key crypto.Signer
	// Lifetime, if set, is requested as spec.expirationSeconds. A kubelet requests no lifetime.
	Lifetime *time.Duration
}

// User returns the user name of the node.
func (n *Node) User() string { return csr.NodeUserPrefix + n.Name }

func (n *Node) subject() pkix.Name {
	return pkix.Name{CommonName: n.User(), Organization: []string{csr.NodeGroup}}
}

// config returns a client configuration with a certificate. client-go's keyutil can't marshal all kinds of keys.
func (n *Node) config(cert *tls.Certificate) (*rest.Config, error) {
	cfg := rest.AnonymousClientConfig(n.Bootstrap)
	for _, der := range cert.Certificate {
		cfg.CertData = append(cfg.CertData, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	cfg.KeyData = pem.EncodeToMemory(&pem.Block{Type: keyutil.PrivateKeyBlockType, Bytes: der})
	return cfg, err
}

func (n *Node) store(t *testing.T) certificate.FileStore {
	t.Helper()
	return kit.Must(certificate.NewFileStore("kubelet-client", n.Dir, n.Dir, "", ""))(t)
}

// Join gets and stores the first client certificate.
func (n *Node) Join(t *testing.T) *tls.Certificate {
	t.Helper()
	key := n.Key
	if key == nil {
		key = kit.NewKey(t)
	}
	issued := kit.Must(n.Request(t.Context(), n.Bootstrap, key, certificatesv1.UsageClientAuth))(t)
	cfg := kit.Must(n.config(issued))(t)
	cert := kit.Must(n.store(t).Update(cfg.CertData, cfg.KeyData))(t)
	n.checkIdentity(t, cert)
	return cert
}

// Renew gets a client certificate for key with the credentials of cert. It does not store the certificate. Rotation makes only ECDSA keys.
func (n *Node) Renew(ctx context.Context, cert *tls.Certificate, key crypto.Signer) (*tls.Certificate, error) {
	cfg, err := n.config(cert)
	if err != nil {
		return nil, err
	}
	return n.Request(ctx, cfg, key, certificatesv1.UsageClientAuth)
}

// Serve gets a certificate for key and the name of the node with the credentials of cert.
func (n *Node) Serve(ctx context.Context, cert *tls.Certificate, key crypto.Signer) (*tls.Certificate, error) {
	cfg, err := n.config(cert)
	if err != nil {
		return nil, err
	}
	return n.Request(ctx, cfg, key, certificatesv1.UsageServerAuth, n.Name)
}

// Request requests a certificate for key and DNS names as the user of cfg, and waits until it is issued. purpose is client auth or server
// auth.
func (n *Node) Request(
	ctx context.Context, cfg *rest.Config, key crypto.Signer, purpose certificatesv1.KeyUsage, names ...string,
) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	usages, signer := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, purpose}, certificatesv1.KubeAPIServerClientKubeletSignerName
	if _, is := key.(*rsa.PrivateKey); is { // only an RSA key can encipher keys
		usages = append(usages, certificatesv1.UsageKeyEncipherment)
	}
	if purpose == certificatesv1.UsageServerAuth {
		signer = certificatesv1.KubeletServingSignerName
	}
	subject := n.subject()
	payload, err := certutil.MakeCSR(key, &subject, names, nil)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	sum := sha512.Sum512_256(public)
	name, uid, err := csrutil.RequestCertificateWithContext(ctx, c, payload, "node-csr-"+base64.RawURLEncoding.EncodeToString(sum[:]),
		signer, n.Lifetime, usages, key)
	if err != nil {
		return nil, err
	}
	issued, err := csrutil.WaitForCertificate(ctx, c, name, uid)
	if err != nil {
		return nil, err
	}
	certs, err := certutil.ParseCertsPEM(issued)
	if err != nil {
		return nil, err
	}
	pair := &tls.Certificate{PrivateKey: key, Leaf: certs[0]}
	for _, cert := range certs {
		pair.Certificate = append(pair.Certificate, cert.Raw)
	}
	return pair, nil
}

// Rotation returns client-go's certificate manager for the client certificate. It requests a first certificate if the store
// is empty, and a new one before the current one expires. Start starts it, and it stops when ctx ends.
func (n *Node) Rotation(ctx context.Context, t *testing.T) certificate.Manager {
	t.Helper()
	return kit.Must(certificate.NewManager(&certificate.Config{
		Ctx: &ctx, CertificateStore: n.store(t), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages: certificate.DefaultKubeletClientGetUsages, RequestedCertificateLifetime: n.Lifetime,
		GetTemplate: func() *x509.CertificateRequest { return &x509.CertificateRequest{Subject: n.subject()} },
		ClientsetFn: func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current == nil { // only then does it use the bootstrap credentials
				return kubernetes.NewForConfig(n.Bootstrap)
			}
			cfg, err := n.config(current)
			if err != nil {
				return nil, err
			}
			return kubernetes.NewForConfig(cfg)
		},
	}))(t)
}

// Rotate runs the certificate manager until it has a client certificate other than old, which may be nil.
func (n *Node) Rotate(t *testing.T, old *tls.Certificate) (cert *tls.Certificate) {
	t.Helper()
	manager := n.Rotation(t.Context(), t)
	manager.Start()
	defer manager.Stop()
	kit.Eventually(t, "a new certificate", func(context.Context) error {
		cert = manager.Current()
		return kit.OrError(cert != nil && (old == nil || cert.Leaf.SerialNumber.Cmp(old.Leaf.SerialNumber) != 0), "there is none")
	})
	n.checkIdentity(t, cert)
	return cert
}

// WhoAmI returns the user that the API server identifies by cfg.
func WhoAmI(ctx context.Context, cfg *rest.Config) (authenticationv1.UserInfo, error) {
	review := &authenticationv1.SelfSubjectReview{}
	c, err := kubernetes.NewForConfig(cfg)
	if err == nil {
		review, err = c.AuthenticationV1().SelfSubjectReviews().Create(ctx, review, metav1.CreateOptions{})
	}
	return review.Status.UserInfo, err
}

// checkIdentity checks that the API server identifies the holder of cert as this node.
func (n *Node) checkIdentity(t *testing.T, cert *tls.Certificate) {
	t.Helper()
	user := kit.Must(WhoAmI(t.Context(), kit.Must(n.config(cert))(t)))(t)
	if user.Username != n.User() || !slices.Contains(user.Groups, csr.NodeGroup) {
		t.Errorf("the API server takes the certificate of %s for %q with groups %q", n.User(), user.Username, user.Groups)
	}
}

// Register creates the node's own Node, as a kubelet does. The Node authorizer permits no other Node.
func (n *Node) Register(t *testing.T, cert *tls.Certificate) {
	t.Helper()
	c := kit.ClientOf(t, kit.Must(n.config(cert))(t))
	kit.NoError(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}))
}
