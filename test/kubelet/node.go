// Package kubelet gets client and serving certificates the way a kubelet does: bootstrap with a request whose name comes
// from its key (Kubernetes pkg/kubelet/certificate/bootstrap), then rotation by client-go's certificate manager
// (pkg/kubelet/certificate). It runs no pods.
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
	// Name is the Node's, without system:node:.
	Name string
	// Dir keeps keys and certificates, like a kubelet's --cert-dir: a Node with the same Dir is the same one after a
	// restart.
	Dir string
	// Bootstrap reaches the API server with the credentials of the bootstrap kubeconfig.
	Bootstrap *rest.Config
	// Lifetime is asked for as spec.expirationSeconds; zero asks for nothing, as a kubelet does.
	Lifetime time.Duration
}

// User is the name that the API server knows the node by.
func (n *Node) User() string { return csr.NodeUserPrefix + n.Name }

func (n *Node) subject() pkix.Name {
	return pkix.Name{CommonName: n.User(), Organization: []string{csr.NodeGroup}}
}

// lifetime is Lifetime as client-go wants it.
func (n *Node) lifetime() *time.Duration {
	if n.Lifetime == 0 {
		return nil
	}
	return &n.Lifetime
}

// Store is where the client certificate and its key are once there is one.
func (n *Node) Store() (certificate.FileStore, error) {
	return certificate.NewFileStore("kubelet-client", n.Dir, n.Dir, "", "")
}

// pendingKeyFile keeps the key while its request waits, so that a restart finds the same request again.
func (n *Node) pendingKeyFile() string { return filepath.Join(n.Dir, "kubelet-client.key.tmp") }

// UseKey has the node bootstrap with key, for example an RSA one; without it, it makes an ECDSA key.
func (n *Node) UseKey(key crypto.Signer) error {
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	return keyutil.WriteKey(n.pendingKeyFile(), encoded)
}

// key returns the key that waits for a certificate, and makes it if there is none.
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

// ConfigFor reaches the API server with a certificate.
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

// template is what the node asks for, with the names that a serving certificate is for.
func (n *Node) template(addresses Addresses) *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: n.subject(), DNSNames: addresses.DNS, IPAddresses: addresses.IP}
}
