// Package kubelet gets client and serving certificates as a kubelet does. It bootstraps with a request whose name
// depends on its key (Kubernetes pkg/kubelet/certificate/bootstrap), and then rotates with client-go's certificate
// manager (pkg/kubelet/certificate). It runs no pods.
package kubelet

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"
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

// Store returns the store of the client certificate and its key.
func (n *Node) Store() (certificate.FileStore, error) {
	return certificate.NewFileStore("kubelet-client", n.Dir, n.Dir, "", "")
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

// template returns the content of the node's request, with the names for a serving certificate.
func (n *Node) template(addresses Addresses) *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: n.subject(), DNSNames: addresses.DNS, IPAddresses: addresses.IP}
}
