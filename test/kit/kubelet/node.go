// Package kubelet gets client and serving certificates as a kubelet does. It bootstraps with a request whose name
// depends on its key (Kubernetes pkg/kubelet/certificate/bootstrap), and then rotates with client-go's certificate
// manager (pkg/kubelet/certificate). It runs no pods.
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
	"fmt"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	csrutil "k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Node is a machine that joins a cluster.
type Node struct {
	// Name is the name of the Node, without system:node:.
	Name string
	// Dir holds keys and certificates, like a kubelet's --cert-dir. A Node with the same Dir is the same node after a
	// restart.
	Dir string
	// Bootstrap reaches the API server with the credentials of the bootstrap kubeconfig.
	Bootstrap *rest.Config
	// Lifetime is requested as spec.expirationSeconds. Zero requests no lifetime, as a kubelet does.
	Lifetime time.Duration
}

// User returns the user name of the node.
func (n *Node) User() string { return csr.NodeUserPrefix + n.Name }

func (n *Node) subject() pkix.Name {
	return pkix.Name{CommonName: n.User(), Organization: []string{csr.NodeGroup}}
}

// lifetime returns Lifetime in client-go's form.
func (n *Node) lifetime() *time.Duration {
	if n.Lifetime == 0 {
		return nil
	}
	return &n.Lifetime
}

// pendingKeyFile returns the file with the key of a pending request, so that a restart finds the same request again.
func (n *Node) pendingKeyFile() string { return filepath.Join(n.Dir, "kubelet-client.key.tmp") }

// UseKey sets the key for the bootstrap, for example an RSA key. Without it, the node makes an ECDSA key.
func (n *Node) UseKey(key crypto.Signer) error {
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	return keyutil.WriteKey(n.pendingKeyFile(), encoded)
}

// key returns the key that waits for a certificate, and creates it if there is none.
func (n *Node) key() (crypto.Signer, []byte, error) {
	encoded, _, err := keyutil.LoadOrGenerateKeyFile(n.pendingKeyFile())
	if err != nil {
		return nil, nil, err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(encoded)
	if err != nil {
		return nil, nil, fmt.Errorf("read key: %w", err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("a key of type %T can't sign", parsed)
	}
	return key, encoded, nil
}

// PendingKey returns the public key that waits for a certificate.
func (n *Node) PendingKey() (crypto.PublicKey, error) {
	if _, err := os.Stat(n.pendingKeyFile()); err != nil {
		return nil, err
	}
	key, _, err := n.key()
	if err != nil {
		return nil, err
	}
	return key.Public(), nil
}

// ConfigFor returns a client configuration with a certificate.
func (n *Node) ConfigFor(cert *tls.Certificate) (*rest.Config, error) {
	key, err := keyutil.MarshalPrivateKeyToPEM(cert.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	cfg := rest.AnonymousClientConfig(n.Bootstrap)
	cfg.KeyData = key
	for _, der := range cert.Certificate {
		cfg.CertData = append(cfg.CertData, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return cfg, nil
}

// Pending is a bootstrap request that has no certificate yet.
type Pending struct {
	Name string
	UID  types.UID

	node   *Node
	client kubernetes.Interface
	key    []byte
}

// Join requests the first client certificate and waits for it until ctx ends.
func (n *Node) Join(ctx context.Context) (*tls.Certificate, error) {
	pending, err := n.Request(ctx)
	if err != nil {
		return nil, err
	}
	return pending.Wait(ctx)
}

// Request creates the request for the first client certificate. Its name depends on the key, so that a restarted node finds the same
// request again.
func (n *Node) Request(ctx context.Context) (*Pending, error) {
	key, encoded, err := n.key()
	if err != nil {
		return nil, err
	}
	subject := n.subject()
	payload, err := certutil.MakeCSR(key, &subject, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	if _, ok := key.(*rsa.PrivateKey); ok { // only an RSA key can encipher keys
		usages = append(usages, certificatesv1.UsageKeyEncipherment)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	sum := sha512.Sum512_256(der)
	client, err := kubernetes.NewForConfig(n.Bootstrap)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	name, uid, err := csrutil.RequestCertificateWithContext(ctx, client, payload, "node-csr-"+base64.RawURLEncoding.EncodeToString(sum[:]),
		certificatesv1.KubeAPIServerClientKubeletSignerName, n.lifetime(), usages, key)
	if err != nil {
		return nil, fmt.Errorf("request certificate: %w", err)
	}
	return &Pending{Name: name, UID: uid, node: n, client: client, key: encoded}, nil
}

// Wait waits for the certificate until ctx ends, stores it, and removes the pending key.
func (p *Pending) Wait(ctx context.Context) (*tls.Certificate, error) {
	issued, err := csrutil.WaitForCertificate(ctx, p.client, p.Name, p.UID)
	if err != nil {
		return nil, fmt.Errorf("wait for request %s: %w", p.Name, err)
	}
	store, err := certificate.NewFileStore("kubelet-client", p.node.Dir, p.node.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	cert, err := store.Update(issued, p.key)
	if err != nil {
		return nil, fmt.Errorf("store certificate: %w", err)
	}
	return cert, os.Remove(p.node.pendingKeyFile())
}
