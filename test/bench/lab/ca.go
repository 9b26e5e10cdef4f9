package lab

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

// MakeCAs creates a CA for each name. Subjects can sign with them, but the API server does not trust them.
func (l *Lab) MakeCAs(names ...string) error {
	for _, name := range names {
		ca, err := newCA(name)
		if err != nil {
			return fmt.Errorf("create a CA with an %s key: %w", name, err)
		}
		if err := l.writeCA(name, ca); err != nil {
			return err
		}
	}
	return nil
}

func newCA(algorithm string) (*csrenv.CA, error) {
	key, err := newKey(algorithm)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench " + algorithm},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &csrenv.CA{
		CertPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		KeyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, nil
}

func newKey(algorithm string) (crypto.Signer, error) {
	switch algorithm {
	case RSACA:
		return rsa.GenerateKey(rand.Reader, 2048)
	case Ed25519CA:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	default:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
}
