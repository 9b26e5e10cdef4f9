package probe

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// TestAskShowsTheChain checks that a probe of an intermediate CA presents that CA too, as a kubelet does. An API
// server that knows only the root then recognises it.
func TestAskShowsTheChain(t *testing.T) {
	t.Parallel()
	root, rootKey, err := ca.New(ca.NewOptions{CommonName: "root", Lifetime: time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	parent, _ := pem.Decode(rootKey)
	parentKey, err := x509.ParsePKCS8PrivateKey(parent.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "between"}, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, root.Certificate(), parentKey.(crypto.Signer).Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	between, err := ca.Load(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), rootKey)
	if err != nil {
		t.Fatal(err)
	}
	probe, err := Mint(t.Context(), between, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, cluster := serve(t, func(*x509.Certificate) (int, any) { return 201, reviewFor(probe.Subject, probe.ID) })
	if answer := probe.Ask(t.Context(), cluster); answer.Trust != Recognised {
		t.Errorf("%s: %s", answer.Trust, answer.Evidence)
	}
	if len(s.shown) != 2 || s.shown[1].Subject.CommonName != "between" {
		t.Errorf("shown %d certificates, want the leaf and its CA", len(s.shown))
	}
}
