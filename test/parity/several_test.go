package parity

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// testSeveralCertificates checks the deviation ca-bundle: kube-controller-manager exits, and ours signs with the
// certificate that belongs to the key.
func (e *env) testSeveralCertificates(t *testing.T, own program) {
	t.Helper()
	other := selfSigned("", time.Now().Add(time.Hour), nil)
	e.testRefusedFiles(t, own, "bundle", slices.Concat(e.CA.CertPEM, other), e.CA.KeyPEM, "expected 1 certificate, found 2")
}

// testWrongLabel checks the deviation key-label: kube-controller-manager exits, and ours signs.
func (e *env) testWrongLabel(t *testing.T, own program) {
	t.Helper()
	if !bytes.Contains(e.CA.KeyPEM, []byte("BEGIN PRIVATE KEY")) {
		t.Fatal("the cluster's CA key is not in PKCS#8")
	}
	mislabelled := bytes.ReplaceAll(e.CA.KeyPEM, []byte(" PRIVATE KEY"), []byte(" RSA PRIVATE KEY"))
	e.testRefusedFiles(t, own, "label", e.CA.CertPEM, mislabelled, "does not contain a valid RSA or ECDSA private key")
}

// testRefusedFiles checks that kube-controller-manager exits with these words, and that ours signs.
func (e *env) testRefusedFiles(t *testing.T, own program, name string, certPEM, keyPEM []byte, words string) {
	t.Helper()
	args := append(e.filesOf(t, name, certPEM, keyPEM), "--controllers=csrsigning")
	theirs := kubeControllerManager(os.Getenv("KUBE_CONTROLLER_MANAGER")).start(t, e, args...)
	select {
	case <-theirs.processes[0].Done:
	case <-time.After(time.Minute):
		t.Fatal("kube-controller-manager runs with these files")
	}
	if tail := theirs.tail(); !strings.Contains(tail, words) {
		t.Errorf("kube-controller-manager ended, but said:\n%s", tail)
	}
	turn := e.turn(t, own)
	turn.make(t, name, client)
	turn.run(t, args...)
	turn.settle(t, map[string]string{turn.names[name]: approvedIssued})
	found := turn.read(t, client, name, turn.list(t)[turn.names[name]])
	if found.Certificate == nil || found.Certificate.Issuer != "CN=csrenv" {
		t.Errorf("%+v is not signed by the CA of the key", found)
	}
	turn.running.check(t)
}
