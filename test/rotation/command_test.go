package rotation

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	issuedledger "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// runRotation runs the real plugin as a user of the token file.
func runRotation(t *testing.T, user string, args ...string) (output string, exitCode int) {
	t.Helper()
	return kit.RunPlugin(t, kit.TokenConfig(t, user), append([]string{"rotation"}, args...)...)
}

// TestRotationCommand runs as an operator, and as a user who may only read SigningAuthorities. No manager picks up an
// operation. kubectl prints what an authority waits for only in its wide output.
func TestRotationCommand(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Apply(t, "rotation")
	kit.Grant(t, "stranger", "csr-rotation-operator")
	kit.Grant(t, "joiner", "csr-signing-authorities-view")
	says := func(user, command string, want int, parts ...string) {
		t.Helper()
		output, code := runRotation(t, user, strings.Fields(command)...)
		kit.Says(t, output, code, want, parts...)
	}
	ca := func(keyID string) *v1alpha1.CAStatus {
		return &v1alpha1.CAStatus{KeyID: keyID, Fingerprint: keyID, NotAfter: metav1.NewTime(time.Now().Add(24 * time.Hour))}
	}
	obj := newAuthority(t, "csr-signer", v1alpha1.SigningAuthorityStatus{ // the Secret of the shipped roles
		Phase: v1alpha1.Prepared, Generation: 2, Signing: ca("two"), Retiring: ca("one"), WaitingFor: []string{"a person"},
	})
	kit.NewNode(t, "rotation-status-unknown")
	api := kit.Admin(t)
	nodes := issuedledger.NewRecorder(api, api, types.NamespacedName{Namespace: "default", Name: obj.Name}, clock.RealClock{})
	nodes.Note(issuedledger.Certificate{
		Node: "rotation-status-old", Signer: kubeletSigner, KeyID: "one",
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	kit.NoError(t, nodes.FlushNodes(t.Context()))
	says("stranger", "status csr-signer", 0,
		"SigningAuthority csr-signer: Prepared, generation 2", "rotation-status-old (Node deleted)", "rotation-status-unknown")
	says("joiner", "status csr-signer", 0,
		"SigningAuthority csr-signer: Prepared", "may not get ConfigMaps csr-signer-nodes-00 to -0f in namespace default", "may not list nodes")
	says("joiner", "rollback csr-signer", 1, "cannot patch resource")

	kubeconfig, err := kit.ControlPlane(t).WriteKubeconfig("printed", kit.ControlPlane(t).Config)
	kit.NoError(t, err)
	row := []string{"csr-signer", "Prepared", "two", obj.Status.Signing.NotAfter.UTC().Format(time.RFC3339)}
	for waits, wide := range map[bool][]string{false: nil, true: {"-o", "wide"}} {
		out := kit.Kubectl(t, kubeconfig, append([]string{"get", "signingauthorities", "csr-signer"}, wide...)...)
		if got := strings.Join(strings.Fields(out), " "); !strings.Contains(got, strings.Join(row, " ")) || strings.HasSuffix(got, "a person") != waits {
			t.Errorf("want %q in:\n%s", row, out)
		}
	}

	newAuthority(t, "rotation-waits", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 1})
	says("stranger", "start rotation-waits --wait=false", 0, "rotation-waits: requested rotation start")
	says("stranger", "attest rotation-waits --yes", 1, "rotation attest is refused: the manager has not picked up rotation start yet, "+
		"which was requested before; allowed now: rotation start, rotation attest")
	says("stranger", "start rotation-waits --timeout=1500ms", 1, "not done within 1.5s: the manager has not picked up rotation start yet")
}
