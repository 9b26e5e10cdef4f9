package keypair

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// issued returns a CA of that name for key in PEM, issued by parent or self-signed.
func issued(t testing.TB, name string, key *ecdsa.PrivateKey, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) ([]byte, *x509.Certificate) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
	}
	if parent == nil {
		parent, parentKey = template, key
		template.NotAfter = template.NotAfter.Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), repeatable{parentKey})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert
}

// repeatable signs without random bytes, as RFC 6979 does, so that a certificate is the same in each run.
type repeatable struct{ *ecdsa.PrivateKey }

func (r repeatable) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return r.PrivateKey.Sign(nil, digest, opts)
}

// newKey returns a key that is computed from its name, so that the inputs of fuzz targets mean the same in each run. It
// protects nothing.
func newKey(t testing.TB, name string) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	seed := sha256.Sum256([]byte("csr-controller-manager " + name))
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:])
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// TestRootsComeAlong checks that an intermediate CA is adopted with the root from ca.crt, and that no reader refuses
// the written Secret.
func TestRootsComeAlong(t *testing.T) {
	rootKey, _ := newKey(t, "root")
	root, rootCert := issued(t, "root", rootKey, nil, nil)
	key, keyPEM := newKey(t, "below")
	below, belowCert := issued(t, "below", key, rootCert, rootKey)
	self, selfCert := issued(t, "below", key, nil, nil) // the same key and name, and expires later
	otherKey, otherPEM := newKey(t, "other")
	other, otherCert := issued(t, "other", otherKey, nil, nil)

	for name, test := range map[string]struct {
		cert, key, roots []byte
		want             []byte // tls.crt as it is read
		signs            *x509.Certificate
		kept             bool // whether ca.crt is kept
	}{
		"intermediate":             {below, keyPEM, root, bytes.Join([][]byte{below, root}, nil), belowCert, true},
		"without its last newline": {bytes.TrimSpace(below), keyPEM, root, bytes.Join([][]byte{below, root}, nil), belowCert, true},
		"its root is there":        {bytes.Join([][]byte{below, root}, nil), keyPEM, root, bytes.Join([][]byte{below, root}, nil), belowCert, true},
		"self-signed":              {other, otherPEM, other, other, otherCert, true},
		"another for its key":      {below, keyPEM, self, below, belowCert, true},
		"that other one":           {self, keyPEM, self, self, selfCert, true},
		"of an earlier CA":         {other, otherPEM, root, other, otherCert, false},
		"not its root":             {below, keyPEM, other, below, belowCert, false},
		"invalid":                  {other, otherPEM, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), other, otherCert, false},
		"none":                     {below, keyPEM, nil, below, belowCert, false},
	} {
		data := map[string][]byte{"tls.crt": test.cert, "tls.key": test.key}
		if test.roots != nil {
			data[rootsKey] = test.roots
		}
		ring, err := ParseRing(data)
		if err != nil || !bytes.Equal(ring.TLS.Cert, test.want) {
			t.Errorf("%s: read, error %v:\n%s", name, err, ring.TLS.Cert)
		}
		ring.Signing = ring.TLS
		if err := ring.WriteTo(data); err != nil {
			t.Fatal(err)
		}
		if again, err := ParseRing(data); err != nil || !again.TLS.Equal(again.Signing) {
			t.Errorf("%s: what is written looks like an edit: %+v, error %v", name, again, err)
		}
		if _, kept := data[rootsKey]; kept != test.kept {
			t.Errorf("%s: ca.crt is kept: %t", name, kept)
		}
		authority, err := ca.Load(data["tls.crt"], data["tls.key"], data[rootsKey])
		if err != nil || !authority.Certificate().Equal(test.signs) {
			t.Errorf("%s: without a guard: error %v", name, err)
		}
		if authority, err = ring.Signing.Load(); err != nil || !authority.Certificate().Equal(test.signs) {
			t.Errorf("%s: with a guard: error %v", name, err)
		}
		if _, err := authority.WithChain(ca.WithRoot); (err == nil) != (name != "not its root" && name != "none" && name != "another for its key") {
			t.Errorf("%s: its chain to the root: error %v", name, err)
		}

		// A rotation removes an earlier ca.crt.
		ring.TLS = Pair{other, otherPEM}
		if err := ring.WriteTo(data); err != nil {
			t.Fatal(err)
		}
		if _, err := ca.Load(data["tls.crt"], data["tls.key"], data[rootsKey]); err != nil {
			t.Errorf("%s: after a rotation, without a guard: %v", name, err)
		}
	}
}
