package parity

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
	"os"
	"path/filepath"
	"sync"
	"time"
)

// madeKeys has one key of each kind, made when first asked for: what is compared never depends on its value.
var madeKeys = map[string]func() (crypto.Signer, error){
	"":          sync.OnceValues(func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }),
	"P-384":     sync.OnceValues(func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P384(), rand.Reader) }),
	"P-521":     sync.OnceValues(func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P521(), rand.Reader) }),
	"P-224":     sync.OnceValues(func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P224(), rand.Reader) }),
	"Ed25519":   sync.OnceValues(func() (crypto.Signer, error) { _, key, err := ed25519.GenerateKey(rand.Reader); return key, err }),
	"RSA-1024":  sync.OnceValues(func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 1024) }),
	"RSA-2048":  sync.OnceValues(func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 2048) }),
	"RSA-4096":  sync.OnceValues(func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 4096) }),
	"authority": sync.OnceValues(func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P384(), rand.Reader) }),
}

func keyOf(kind string) (crypto.Signer, error) {
	generate, known := madeKeys[kind]
	if !known {
		return nil, fmt.Errorf("no key of kind %q", kind)
	}
	return generate()
}

// storedCertificate is what a row has in its status from the beginning.
func (r row) storedCertificate() ([]byte, error) {
	if r.endedAgo == 0 {
		return r.certificate, nil
	}
	return selfSigned("", time.Now().Add(-r.endedAgo))
}

// selfSigned makes a CA certificate with the key of that kind.
func selfSigned(kind string, notAfter time.Time) ([]byte, error) {
	key, err := keyOf(kind)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "parity CA " + kind},
		NotBefore:             notAfter.Add(-365 * 24 * time.Hour),
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// writeCA writes a CA with a key of that kind into dir and returns the two paths.
func writeCA(dir, kind string, notAfter time.Time) (certFile, keyFile string, err error) {
	cert, err := selfSigned(kind, notAfter)
	if err != nil {
		return "", "", err
	}
	key, err := keyOf(kind)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	return writePair(dir, "ca-"+kind, cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func writePair(dir, name string, cert, key []byte) (certFile, keyFile string, err error) {
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		return "", "", err
	}
	return certFile, keyFile, os.WriteFile(keyFile, key, 0o600)
}
