package kit

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// NewCA returns a new CA.
func NewCA(t *testing.T) *csrenv.CA {
	t.Helper()
	return Must(csrenv.NewCA())(t)
}

// Certificate returns the certificate of a CA.
func Certificate(t *testing.T, of *csrenv.CA) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(of.CertPEM)
	return Must(x509.ParseCertificate(block.Bytes))(t)
}

// Write writes a file that only its owner may read.
func Write(t *testing.T, file string, data []byte) {
	t.Helper()
	NoError(t, os.WriteFile(file, data, 0o600))
}

// Load returns what signs with a CA.
func Load(t *testing.T, of *csrenv.CA) *ca.Authority {
	t.Helper()
	return Must(ca.Load(of.CertPEM, of.KeyPEM, nil))(t)
}

// IntermediateOf returns a CA that root has signed.
func IntermediateOf(t *testing.T, root *csrenv.CA) *csrenv.CA {
	t.Helper()
	pair := Must(tls.X509KeyPair(root.CertPEM, root.KeyPEM))(t)
	made := IssueCA(t, "between "+rand.Text(), NewKey(t), &CA{pair.Leaf, pair.PrivateKey.(crypto.Signer)}, time.Hour)
	return &csrenv.CA{CertPEM: made.PEM(), KeyPEM: made.KeyPEM(t)}
}

// CA is a CA that can do more than csrenv's CA.
type CA struct {
	Cert *x509.Certificate
	key  crypto.Signer
}

// IssueCA makes a certificate for key, signed by issuer. Without an issuer it is self-signed.
func IssueCA(t *testing.T, name string, key crypto.Signer, issuer *CA, life time.Duration) *CA {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name + " of " + t.Name()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	parent, by := template, key
	if issuer != nil {
		parent, by = issuer.Cert, issuer.key
	}
	der := Must(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by))(t)
	return &CA{Must(x509.ParseCertificate(der))(t), key}
}

// PEM returns the certificate of c in PEM.
func (c *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Cert.Raw})
}

// KeyPEM returns the private key of c in PEM.
func (c *CA) KeyPEM(t *testing.T) []byte {
	t.Helper()
	der := Must(x509.MarshalPKCS8PrivateKey(c.key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Leaf returns a client certificate of c.
func (c *CA) Leaf(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key := NewKey(t)
	der := Must(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: c.Cert.NotBefore, NotAfter: c.Cert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, c.Cert, key.Public(), c.key))(t)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// SigningSecret returns the Secret from which managers sign by default.
func SigningSecret(cert, key []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: "csr-signer"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}
}
