package parity

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// testSeveralCertificates is the deviation ca-bundle: kube-controller-manager exits, we sign with the certificate that
// belongs to the key.
func (e *env) testSeveralCertificates(t *testing.T, own program) {
	t.Helper()
	other, err := selfSigned("", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := writePair(t.TempDir(), "bundle", slices.Concat(e.CA.CertPEM, other), e.CA.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--kubeconfig=" + e.kubeconfig, "--leader-elect=false", "--controllers=csrsigning",
		"--cluster-signing-cert-file=" + cert, "--cluster-signing-key-file=" + key}
	theirs := kubeControllerManager(os.Getenv("KUBE_CONTROLLER_MANAGER")).start(t, e.Cluster, args...)
	select {
	case <-theirs.ended:
	case <-time.After(time.Minute):
		t.Fatal("kube-controller-manager runs with two certificates in its CA file")
	}
	if tail := theirs.tail(t); !strings.Contains(tail, "expected 1 certificate, found 2") {
		t.Errorf("kube-controller-manager ended, but said:\n%s", tail)
	}
	turn := &pass{env: e, program: own, patience: patience, names: map[string]string{}, from: map[string]time.Time{}}
	turn.make(t, "bundle", client)
	running := turn.start(t, e.Cluster, args...)
	turn.settle(t, map[string]string{turn.names["bundle"]: approvedIssued})
	found := turn.read(t, client, "bundle", turn.list(t)[turn.names["bundle"]])
	if found.Certificate == nil || found.Certificate.Issuer != "CN=csrenv" {
		t.Errorf("%+v is not signed by the CA of the key", found)
	}
	running.check(t, true)
}
