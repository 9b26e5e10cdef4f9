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
	"maps"
	"math/big"
	"reflect"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// TestRoundTrip checks that a written ring is read again and keeps foreign keys, and that an empty ring leaves nothing but
// them and an empty tls.crt and tls.key.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	full := Ring{
		TLS:       Pair{[]byte("tc"), []byte("tk")},
		Signing:   Pair{[]byte("sc"), []byte("sk")},
		Candidate: Pair{[]byte("cc"), []byte("ck")},
		Retiring:  Pair{[]byte("rc"), []byte("rk")},
		Permit:    Permit{Authority: "cluster", Signers: []string{"example.com/client"}, LifetimeCap: time.Hour},
	}
	data := map[string][]byte{"else": []byte("kept")}
	err := full.WriteTo(data)
	if got := must(ParseRing(data)); err != nil || !reflect.DeepEqual(got, full) || len(data) != 10 {
		t.Errorf("got %+v from %d keys, %v", got, len(data), err)
	}
	err = Ring{}.WriteTo(data)
	want := map[string][]byte{"tls.crt": {}, "tls.key": {}, "else": []byte("kept")}
	if err != nil || !maps.EqualFunc(data, want, bytes.Equal) || data["tls.crt"] == nil || data["tls.key"] == nil {
		t.Errorf("left %v, error %v", data, err)
	}
}

// link is a CA for a key, in PEM. The key is computed from its name, so that the inputs of fuzz targets mean the same in each
// run. It protects nothing.
type link struct {
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	pem    []byte
	keyPEM []byte
}

// newLink returns a CA of that name, issued by parent or self-signed. A self-signed CA expires later.
func newLink(name string, parent *link) *link {
	seed := sha256.Sum256([]byte("csr-controller-manager " + name))
	key := must(ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:]))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
	}
	if parent == nil {
		parent = &link{key: key, cert: template}
		template.NotAfter = template.NotAfter.Add(time.Hour)
	}
	der := must(x509.CreateCertificate(rand.Reader, template, parent.cert, key.Public(), repeatable{parent.key}))
	return &link{
		key: key, cert: must(x509.ParseCertificate(der)), pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))}),
	}
}

// repeatable signs without random bytes, as RFC 6979 does, so that a certificate is the same in each run.
type repeatable struct{ *ecdsa.PrivateKey }

func (r repeatable) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return r.PrivateKey.Sign(nil, digest, opts)
}

// TestRootsComeAlong checks that an intermediate CA is adopted with the root from ca.crt, and that no reader refuses
// the written Secret.
func TestRootsComeAlong(t *testing.T) {
	t.Parallel()
	root, other := newLink("root", nil), newLink("other", nil)
	below, self := newLink("below", root), newLink("below", nil) // the same key and name, and expires later
	both := append(bytes.Clone(below.pem), root.pem...)
	invalid := []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	for name, test := range map[string]struct {
		signs       *link
		cert, roots []byte
		want        []byte // tls.crt as it is read
		kept        bool   // whether ca.crt is kept
		complete    bool   // whether the chain has a root
	}{
		"intermediate":             {below, below.pem, root.pem, both, true, true},
		"without its last newline": {below, bytes.TrimSpace(below.pem), root.pem, both, true, true},
		"its root is there":        {below, both, root.pem, both, true, true},
		"self-signed":              {other, other.pem, other.pem, other.pem, true, true},
		"another for its key":      {below, below.pem, self.pem, below.pem, true, false},
		"that other one":           {self, self.pem, self.pem, self.pem, true, true},
		"of an earlier CA":         {other, other.pem, root.pem, other.pem, false, true},
		"not its root":             {below, below.pem, other.pem, below.pem, false, false},
		"invalid":                  {other, other.pem, invalid, other.pem, false, true},
		"none":                     {below, below.pem, nil, below.pem, false, false},
	} {
		data := map[string][]byte{"tls.crt": test.cert, "tls.key": test.signs.keyPEM}
		if test.roots != nil {
			data[rootsKey] = test.roots
		}
		ring := must(ParseRing(data))
		if !bytes.Equal(ring.TLS.Cert, test.want) {
			t.Errorf("%s: read:\n%s", name, ring.TLS.Cert)
		}
		ring.Signing = ring.TLS
		err := ring.WriteTo(data)
		if again := must(ParseRing(data)); err != nil || !again.TLS.Equal(again.Signing) {
			t.Errorf("%s: what is written looks like an edit: %+v, error %v", name, again, err)
		}
		if _, kept := data[rootsKey]; kept != test.kept {
			t.Errorf("%s: ca.crt is kept: %t", name, kept)
		}
		unguarded := must(ca.Load(data["tls.crt"], data["tls.key"], data[rootsKey]))
		guarded := must(ring.Signing.Load())
		if !unguarded.Certificate().Equal(test.signs.cert) || !guarded.Certificate().Equal(test.signs.cert) {
			t.Errorf("%s: %s signs without a guard, %s with a guard", name, unguarded.KeyID(), guarded.KeyID())
		}
		if _, err := guarded.WithChain(ca.WithRoot); (err == nil) != test.complete {
			t.Errorf("%s: its chain to the root: error %v", name, err)
		}

		// A rotation removes an earlier ca.crt.
		ring.TLS = Pair{other.pem, other.keyPEM}
		_ = must(ring, ring.WriteTo(data))
		if _, err := ca.Load(data["tls.crt"], data["tls.key"], data[rootsKey]); err != nil {
			t.Errorf("%s: after a rotation, without a guard: %v", name, err)
		}
	}
}
