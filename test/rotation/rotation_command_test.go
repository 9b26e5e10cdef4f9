package rotation

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	issuedledger "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// runRotation runs the real plugin as cfg's user.
func runRotation(t *testing.T, cfg *rest.Config, args ...string) (output string, exitCode int) {
	t.Helper()
	return kit.RunPlugin(t, cfg, append([]string{"rotation"}, args...)...)
}

// newAuthority creates a SigningAuthority with that status.
func newAuthority(t *testing.T, api client.Client, name string, status v1alpha1.SigningAuthorityStatus) *v1alpha1.SigningAuthority {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret:  v1alpha1.SecretReference{Namespace: "default", Name: name},
			Signers: []string{"kubernetes.io/kube-apiserver-client-kubelet"},
		},
	}
	kit.Create(t, api, obj)
	setStatus(t, api, obj, status)
	return obj
}

func setStatus(t *testing.T, api client.Client, obj *v1alpha1.SigningAuthority, status v1alpha1.SigningAuthorityStatus) {
	t.Helper()
	obj.Status = status
	if err := api.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// TestRotationCommandWithoutAManager checks that the command says that nobody picks up the operation, with the exit code.
func TestRotationCommandWithoutAManager(t *testing.T) {
	kit.Parallel(t)
	admin := kit.ControlPlane(t).Config
	obj := newAuthority(t, kit.Admin(t), "rotation-waits", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 1})
	output, code := runRotation(t, admin, "start", obj.Name, "--wait=false")
	kit.Says(t, output, code, 0, "rotation-waits: requested rotation start")
	output, code = runRotation(t, admin, "attest", obj.Name, "--yes")
	kit.Says(t, output, code, 1, "rotation attest is refused: the manager has not picked up rotation start yet, which was requested before; allowed now: rotation start, rotation attest")
	output, code = runRotation(t, admin, "start", obj.Name, "--timeout=1500ms")
	kit.Says(t, output, code, 1, "not done within 1.5s: the manager has not picked up rotation start yet")
}

// TestRotationCommandStatus runs as an operator, and as a user who may read only SigningAuthorities.
func TestRotationCommandStatus(t *testing.T) {
	kit.Parallel(t)
	api := installRotation(t)
	kit.Grant(t, "stranger", "csr-rotation-operator")
	ca := func(keyID string) *v1alpha1.CAStatus {
		return &v1alpha1.CAStatus{KeyID: keyID, Fingerprint: keyID, NotAfter: metav1.NewTime(time.Now().Add(24 * time.Hour))}
	}
	prepared := v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Prepared, Generation: 2, Signing: ca("two"), Retiring: ca("one")}
	obj := newAuthority(t, api, "csr-signer", prepared) // the Secret of the shipped roles
	kit.Create(t, kit.Admin(t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "rotation-status-unknown"}})
	nodes := issuedledger.NewRecorder(api, api, types.NamespacedName{Namespace: "default", Name: obj.Name}, clock.RealClock{})
	nodes.Note(issuedledger.Certificate{
		Node: "rotation-status-old", Signer: "kubernetes.io/kube-apiserver-client-kubelet", KeyID: "one",
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	if err := nodes.FlushNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range issuedledger.NodesNames(obj.Name) {
		t.Cleanup(func() {
			shard := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			if err := client.IgnoreNotFound(api.Delete(context.Background(), shard)); err != nil {
				t.Error(err)
			}
		})
	}
	output, code := runRotation(t, kit.TokenConfig(t, "stranger"), "status", obj.Name)
	kit.Says(t, output, code, 0, "SigningAuthority csr-signer: Prepared, generation 2", "rotation-status-old (Node deleted)", "rotation-status-unknown")

	kit.Grant(t, "joiner", "csr-signing-authorities-view")
	output, code = runRotation(t, kit.TokenConfig(t, "joiner"), "status", obj.Name)
	kit.Says(t, output, code, 0, "SigningAuthority csr-signer: Prepared", "may not get ConfigMaps csr-signer-nodes-00 to -0f in namespace default", "may not list nodes")
	output, code = runRotation(t, kit.TokenConfig(t, "joiner"), "rollback", obj.Name)
	kit.Says(t, output, code, 1, "cannot patch resource")
}
