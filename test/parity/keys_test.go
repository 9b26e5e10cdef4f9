package parity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"sync"
	"time"
)

// madeKeys has one key of each kind, created on first use. The comparison never depends on the value of a key.
var madeKeys = map[string]func() (crypto.Signer, error){
	"":          sync.OnceValues(func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }),
	"P-256":     sync.OnceValues(func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }),
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

// storedCertificate returns the certificate that a row has in its status from the beginning.
func (r row) storedCertificate() ([]byte, error) {
	if r.endedAgo == 0 {
		return r.certificate, nil
	}
	return selfSigned("", time.Now().Add(-r.endedAgo), nil)
}
