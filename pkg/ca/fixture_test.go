package ca_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// now is the time of every test. Certificates hold whole seconds.
var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// keys are made once, because RSA keys take long. The others are computed from their names, so that the inputs of fuzz
// targets mean the same in each run. They protect nothing.
var keys = map[string]func() crypto.Signer{
	"RSA-2048": sync.OnceValue(func() crypto.Signer { return must(rsa.GenerateKey(rand.Reader, 2048)) }),
	"RSA-1024": sync.OnceValue(func() crypto.Signer { return must(rsa.GenerateKey(rand.Reader, 1024)) }),
	"P-224":    func() crypto.Signer { return fixedKey("P-224", elliptic.P224()) },
	"P-256":    func() crypto.Signer { return fixedKey("P-256", elliptic.P256()) },
	"P-384":    func() crypto.Signer { return fixedKey("P-384", elliptic.P384()) },
	"P-521":    func() crypto.Signer { return fixedKey("P-521", elliptic.P521()) },
	"Ed25519":  func() crypto.Signer { return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize)) },
	"leaf":     func() crypto.Signer { return fixedKey("leaf", elliptic.P256()) },
}

func fixedKey(name string, curve elliptic.Curve) *ecdsa.PrivateKey {
	number := make([]byte, (curve.Params().BitSize+7)/8)
	seed := sha512.Sum512([]byte("csr-controller-manager " + name))
	copy(number[max(0, len(number)-len(seed)):], seed[:])
	return must(ecdsa.ParseRawPrivateKey(curve, number))
}

// repeatable signs without random bytes, as RFC 6979 does, so that a certificate is the same in each run.
type repeatable struct{ crypto.Signer }

func (r repeatable) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return r.Signer.Sign(nil, digest, opts)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// caTemplate returns the template of a CA called name that is valid for ten days around now.
func caTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.AddDate(0, 0, -5),
		NotAfter:              now.AddDate(0, 0, 5),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

// selfSigned returns the certificate of template and key in PEM.
func selfSigned(t testing.TB, template *x509.Certificate, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), repeatable{key})
	if err != nil {
		t.Fatal(err)
	}
	return block("CERTIFICATE", der)
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func pkcs8(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return block("PRIVATE KEY", der)
}

// authority returns an Authority with that kind of key, changed by modify.
func authority(t testing.TB, kind string, modify ...func(*x509.Certificate)) *ca.Authority {
	t.Helper()
	template := caTemplate("CA")
	for _, change := range modify {
		change(template)
	}
	key := keys[kind]()
	loaded, err := ca.Load(selfSigned(t, template, key), pkcs8(t, key))
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func profile(t testing.TB, config ca.ProfileConfig) ca.Profile {
	t.Helper()
	checked, err := ca.NewProfile(config)
	if err != nil {
		t.Fatal(err)
	}
	return checked
}

func parse(t testing.TB, data []byte) *x509.Certificate {
	t.Helper()
	first, rest := pem.Decode(data)
	if first == nil || first.Type != "CERTIFICATE" || len(first.Headers) > 0 || len(rest) > 0 {
		t.Fatalf("not exactly one CERTIFICATE block without headers: %q", data)
	}
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
