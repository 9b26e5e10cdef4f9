package check

import (
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

// If an API server publishes the root of an intermediate CA, it trusts a certificate that comes with its chain.
func TestPublishedRootOfAnIntermediate(t *testing.T) {
	t.Parallel()
	var certs []*x509.Certificate
	var parentKey *ecdsa.PrivateKey
	for i, name := range []string{"root", "between"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
			KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		}
		parent := template
		if i > 0 {
			parent = certs[0]
		} else {
			parentKey = key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		certs, parentKey = append(certs, cert), key
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(parentKey)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := ca.Load(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certs[1].Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	if err != nil {
		t.Fatal(err)
	}
	const where = "client-ca-file of ConfigMap kube-system/extension-apiserver-authentication has "
	if sentence, in := authoritySentence(authority, certs[:1], nil); !in || sentence != where+"its issuer, and certificates come with what is between" {
		t.Errorf("%t: %s", in, sentence)
	}
	authority, err = authority.WithChain(ca.None)
	if err != nil {
		t.Fatal(err)
	}
	if sentence, in := authoritySentence(authority, certs[:1], nil); in || sentence != where+"only its issuer, and certificates come without intermediates" {
		t.Errorf("none: %t: %s", in, sentence)
	}
}
