package parity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"sync"
)

// madeKeys has one key of each kind, created on first use. The comparison never depends on the value of a key.
var madeKeys = map[string]func() (crypto.Signer, error){
	"": ec(elliptic.P256()), "P-224": ec(elliptic.P224()), "P-256": ec(elliptic.P256()), "P-384": ec(elliptic.P384()), "P-521": ec(elliptic.P521()),
	"authority": ec(elliptic.P384()),
	"Ed25519":   sync.OnceValues(func() (crypto.Signer, error) { _, key, err := ed25519.GenerateKey(rand.Reader); return key, err }),
	"RSA-1024":  rsaKey(1024), "RSA-2048": rsaKey(2048), "RSA-4096": rsaKey(4096),
}

func ec(curve elliptic.Curve) func() (crypto.Signer, error) {
	return sync.OnceValues(func() (crypto.Signer, error) { return ecdsa.GenerateKey(curve, rand.Reader) })
}

func rsaKey(bits int) func() (crypto.Signer, error) {
	return sync.OnceValues(func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, bits) })
}

func keyOf(kind string) crypto.Signer { return must(madeKeys[kind]()) }

// must returns value. An error is a mistake in the table.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
