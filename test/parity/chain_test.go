package parity

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testIntermediate checks the deviation chain. Certificates of an intermediate CA come with that CA, and are
// identical with chain: None.
func (e *env) testIntermediate(t *testing.T, own program) {
	t.Helper()
	intermediate := e.intermediate(t)
	key, err := privatePEM("P-384")
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile, err := writePair(e.Dir, "intermediate", intermediate, key)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--controllers=csrsigning", "--cluster-signing-cert-file=" + certFile, "--cluster-signing-key-file=" + keyFile}
	issue := func(p program, name string, more ...string) (outcome, []byte) {
		turn := e.turn(t, p)
		turn.make(t, name, client)
		turn.run(t, append(more, args...)...)
		turn.settle(t, map[string]string{turn.names[name]: approvedIssued})
		obj := turn.list(t)[turn.names[name]]
		found := turn.read(t, client, name, obj)
		turn.running.check(t, p.ours())
		if found.Certificate == nil {
			t.Fatalf("%s: nothing was issued: %+v", name, found)
		}
		return found, obj.Status.Certificate
	}
	theirs, _ := issue(kubeControllerManager(os.Getenv("KUBE_CONTROLLER_MANAGER")), "intermediate")
	ours, chain := issue(own, "intermediate")
	if ours.Certificate.Surplus == "" || !bytes.HasSuffix(chain, intermediate) {
		t.Errorf("without the intermediate: %s", chain)
	}
	ours.Certificate.Surplus = ""
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("but for what is appended (-kube-controller-manager +ours):\n%s", diff)
	}
	file := filepath.Join(e.Dir, "chain-none.yaml")
	const none = "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\nsigning: {chain: None}\n"
	if err := os.WriteFile(file, []byte(none), 0o600); err != nil {
		t.Fatal(err)
	}
	strict, _ := issue(own, "intermediate, strict", "--config="+file)
	if diff := cmp.Diff(theirs, strict); diff != "" {
		t.Errorf("chain: None (-kube-controller-manager +ours):\n%s", diff)
	}
}

// intermediate returns a P-384 CA below the cluster's CA.
func (e *env) intermediate(t *testing.T) []byte {
	t.Helper()
	root, err := tls.X509KeyPair(e.CA.CertPEM, e.CA.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	key, err := keyOf("P-384")
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "parity intermediate"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(2, 0, 0),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, root.Leaf, key.Public(), root.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
