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

const day = 24 * time.Hour

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

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func pkcs8(key crypto.Signer) []byte {
	return block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key)))
}

func profile(config ca.ProfileConfig) ca.Profile { return must(ca.NewProfile(config)) }

// link is a CA in a chain.
type link struct {
	template *x509.Certificate
	key      crypto.Signer
	pem      []byte
}

// below makes a CA called name whose issuer is l, valid for ten days around now unless change says otherwise. If l is nil, it
// makes a root.
func (l *link) below(name, kind string, change ...func(*x509.Certificate)) *link {
	made := &link{key: keys[kind](), template: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.AddDate(0, 0, -5), NotAfter: now.AddDate(0, 0, 5),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}}
	for _, each := range change {
		each(made.template)
	}
	if l == nil {
		l = made
	}
	der := must(x509.CreateCertificate(rand.Reader, made.template, l.template, made.key.Public(), repeatable{l.key}))
	made.pem = block("CERTIFICATE", der)
	return made
}

func root(name, kind string, change ...func(*x509.Certificate)) *link {
	return (*link)(nil).below(name, kind, change...)
}

// load returns the CA of l. more are certificates beside its own, and ca.crt.
func (l *link) load(more ...[]byte) (*ca.Authority, error) {
	more = append(more, nil, nil)
	return ca.Load(append(bytes.Clone(l.pem), more[0]...), pkcs8(l.key), more[1:]...)
}

// authority returns a root with that kind of key.
func authority(kind string, change ...func(*x509.Certificate)) *ca.Authority {
	return must(root("CA", kind, change...).load())
}

// request returns the smallest request.
func request() ca.Request { return ca.Request{PublicKey: keys["leaf"]().Public()} }

// issue returns what by issues for the smallest request.
func issue(by *ca.Authority) *ca.Issued {
	return must(by.Issue(profile(ca.ProfileConfig{Lifetime: day}), request(), now))
}

// parse returns the certificates in data, which must hold nothing but CERTIFICATE blocks without headers.
func parse(t testing.TB, data []byte) []*x509.Certificate {
	t.Helper()
	certs := must(ca.ParseCertificates(data))
	var again []byte
	for _, cert := range certs {
		again = append(again, block("CERTIFICATE", cert.Raw)...)
	}
	if !bytes.Equal(again, data) || len(certs) == 0 {
		t.Fatalf("more or less than blocks of type CERTIFICATE: %q", data)
	}
	return certs
}

// verify verifies a leaf as a client or a server would.
func verify(leaf *x509.Certificate, roots, between *x509.CertPool) error {
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: usages})
	return err
}
