package parity

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// testIntermediate checks the deviation chain. Certificates of an intermediate CA come with that CA, and are
// identical with chain: None.
func (e *env) testIntermediate(t *testing.T, own program) {
	t.Helper()
	intermediate := kit.IntermediateOf(t, e.CA)
	e.ends = append(e.ends, kit.Certificate(t, intermediate).NotAfter)
	args := append(e.filesOf(t, "intermediate", intermediate.CertPEM, intermediate.KeyPEM), "--controllers=csrsigning")
	issue := func(p program, name string, more ...string) (outcome, []byte) {
		turn := e.turn(t, p)
		turn.make(t, name, client)
		turn.run(t, append(more, args...)...)
		turn.settle(t, map[string]string{turn.names[name]: approvedIssued})
		obj := turn.list(t)[turn.names[name]]
		found := turn.read(t, client, name, obj)
		turn.running.check(t)
		if found.Certificate == nil {
			t.Fatalf("%s: nothing was issued: %+v", name, found)
		}
		return found, obj.Status.Certificate
	}
	theirs, _ := issue(kubeControllerManager(os.Getenv("KUBE_CONTROLLER_MANAGER")), "intermediate")
	ours, chain := issue(own, "intermediate")
	if ours.Certificate.Surplus == "" || !bytes.HasSuffix(chain, intermediate.CertPEM) {
		t.Errorf("without the intermediate: %s", chain)
	}
	ours.Certificate.Surplus = ""
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("but for what is appended (-kube-controller-manager +ours):\n%s", diff)
	}
	strict, _ := issue(own, "intermediate, strict", kit.Configure(t, "signing: {chain: None}\n"))
	if diff := cmp.Diff(theirs, strict); diff != "" {
		t.Errorf("chain: None (-kube-controller-manager +ours):\n%s", diff)
	}
}
