//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

// pair is a certificate and its key, in PEM.
type pair struct{ cert, key []byte }

// write writes it to path+".crt" and path+".key".
func (p pair) write(path string) error {
	return errors.Join(os.WriteFile(path+".crt", p.cert, 0o600), os.WriteFile(path+".key", p.key, 0o600))
}

// issue signs a certificate directly with the CA's key, as kubeadm init does for the control plane.
func issue(ca *csrenv.CA, template *x509.Certificate) (pair, error) {
	parent, err := tls.X509KeyPair(ca.CertPEM, ca.KeyPEM)
	if err != nil {
		return pair{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return pair{}, err
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, parent.Leaf, key.Public(), parent.PrivateKey)
	if err != nil {
		return pair{}, err
	}
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	return pair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), encoded}, err
}

// clientPair returns a certificate for user.
func clientPair(ca *csrenv.CA, user string, groups ...string) (pair, error) {
	return issue(ca, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}
