package keypair

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// issued returns a CA of that name for key in PEM, issued by parent or self-signed.
func issued(t testing.TB, name string, key *ecdsa.PrivateKey, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) ([]byte, *x509.Certificate) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}
	if parent == nil {
		parent, parentKey = template, key
		template.NotAfter = template.NotAfter.Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert
}

func newKey(t testing.TB) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
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
	rootKey, _ := newKey(t)
	root, rootCert := issued(t, "root", rootKey, nil, nil)
	key, keyPEM := newKey(t)
	below, belowCert := issued(t, "below", key, rootCert, rootKey)
	self, selfCert := issued(t, "below", key, nil, nil) // the same key and name, and expires later
	otherKey, otherPEM := newKey(t)
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
