package rotation

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
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

// caOf returns a CA as in a status.
func caOf(keyID string, generation int64) *v1alpha1.CAStatus {
	return &v1alpha1.CAStatus{
		KeyID: keyID, Fingerprint: "f-" + keyID, Certificate: "c", Generation: generation,
		NotAfter: metav1.NewTime(time.Now().Add(24 * time.Hour).Truncate(time.Second)),
	}
}

// statuses returns the statuses of a rotation from generation one to two.
func statuses() (completed, preparing, prepared, completing, moved v1alpha1.SigningAuthorityStatus) {
	one, two := caOf("one", 1), caOf("two", 2)
	completed = v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 1, Signing: one}
	preparing = v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing, Generation: 2, Signing: one, Candidate: two, WaitingFor: []string{"10.0.0.9:6443 does not trust it"}}
	prepared = v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Prepared, Generation: 2, Signing: two, Retiring: one}
	completing = v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completing, Generation: 2, Signing: two, Retiring: one}
	moved = v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 2, Signing: two, LastRetired: one}
	return completed, preparing, prepared, completing, moved
}

// operator returns a user with only the shipped role for operators of rotations.
func operator(t *testing.T) (api client.Client, user *rest.Config) {
	t.Helper()
	api = installRotation(t)
	kit.Grant(t, "stranger", "csr-rotation-operator")
	return api, kit.TokenConfig(t, "stranger")
}

// TestRotationCommand goes through a rotation as an operator, against a simulated manager.
func TestRotationCommand(t *testing.T) {
	kit.Parallel(t)
	api, user := operator(t)
	completed, preparing, prepared, completing, moved := statuses()
	accepted := *prepared.DeepCopy()
	accepted.Retiring.OutstandingAcceptedAt = &metav1.Time{Time: time.Now().Truncate(time.Second)}
	obj := newAuthority(t, api, "rotation-command", completed)
	stop := plays(t, api, obj.Name, map[v1alpha1.Operation]answer{
		v1alpha1.OperationStart:    {statuses: []v1alpha1.SigningAuthorityStatus{preparing, prepared}},
		v1alpha1.OperationComplete: {refusal: "rotation complete is refused: certificates of s are valid; allowed now: rotation rollback"},
		v1alpha1.OperationAccept:   {statuses: []v1alpha1.SigningAuthorityStatus{accepted}},
	})
	output, code := runRotation(t, user, "complete", obj.Name, "--yes")
	kit.Says(t, output, code, 1, "rotation complete is refused: the phase is Completed; allowed now: rotation start, rotation attest")
	output, code = runRotation(t, user, "start", obj.Name, "--timeout=20s")
	kit.Says(t, output, code, 0, "rotation-command: done: Prepared, generation 2")
	output, code = runRotation(t, user, "complete", obj.Name)
	kit.Says(t, output, code, 1, "destroys its key. You cannot go back", "rotation complete: not requested: to do it, run kubectl csr rotation complete "+obj.Name+" --yes")
	for range 2 { // the earlier result is not taken for the answer, and does not hide it
		output, code = runRotation(t, user, "complete", obj.Name, "--yes", "--timeout=20s")
		kit.Says(t, output, code, 1, "rotation complete is refused: certificates of s are valid; allowed now: rotation rollback")
	}
	output, code = runRotation(t, user, "accept", obj.Name, "--yes", "--timeout=20s")
	kit.Says(t, output, code, 0, "rotation-command: done: Prepared, generation 2")
	stop()

	stop = plays(t, api, obj.Name, map[v1alpha1.Operation]answer{
		v1alpha1.OperationComplete: {statuses: []v1alpha1.SigningAuthorityStatus{completing, moved}},
	})
	output, code = runRotation(t, user, "complete", obj.Name, "--yes", "--timeout=20s")
	kit.Says(t, output, code, 0, "rotation-command: done: Completed, generation 2")
	stop()
}

// TestRotationCommandWaits checks that a timeout is reported with its reason, and with the exit code.
func TestRotationCommandWaits(t *testing.T) {
	kit.Parallel(t)
	api := kit.Admin(t)
	completed, preparing, _, _, _ := statuses()
	obj := newAuthority(t, api, "rotation-waits", completed)
	output, code := runRotation(t, kit.ControlPlane(t).Config, "start", obj.Name, "--wait=false")
	kit.Says(t, output, code, 0, "rotation-waits: requested rotation start")
	output, code = runRotation(t, kit.ControlPlane(t).Config, "attest", obj.Name, "--yes")
	kit.Says(t, output, code, 1, "rotation attest is refused: the manager has not picked up rotation start yet, which was requested before; allowed now: rotation start, rotation attest")
	output, code = runRotation(t, kit.ControlPlane(t).Config, "start", obj.Name, "--timeout=1500ms")
	kit.Says(t, output, code, 1, "not done within 1.5s: the manager has not picked up rotation start yet")
	obj = newAuthority(t, api, "rotation-waits-on", completed)
	defer plays(t, api, obj.Name, map[v1alpha1.Operation]answer{v1alpha1.OperationStart: {statuses: []v1alpha1.SigningAuthorityStatus{preparing}}})()
	output, code = runRotation(t, kit.ControlPlane(t).Config, "start", obj.Name, "--timeout=3s")
	kit.Says(t, output, code, 1, "Preparing, generation 2, waiting: 10.0.0.9:6443 does not trust it", "not done within 3s: Preparing", "the manager continues")
	output, code = runRotation(t, kit.ControlPlane(t).Config, "wait", obj.Name, "--timeout=2s")
	kit.Says(t, output, code, 1, "waiting at most 2s (--timeout) until the new CA is trusted and signs", "not done within 2s: Preparing")
	output, code = runRotation(t, kit.ControlPlane(t).Config, "status", "nobody")
	kit.Says(t, output, code, 1, `there is no SigningAuthority "nobody"`)
}

// TestRotationCommandBelievesNoEvent checks that an Event, which others may write, decides nothing.
func TestRotationCommandBelievesNoEvent(t *testing.T) {
	kit.Parallel(t)
	api := kit.Admin(t)
	_, _, prepared, _, _ := statuses()
	obj := newAuthority(t, api, "rotation-forged", prepared)
	forged := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: obj.Name + "-", Namespace: "default"},
		EventTime:  metav1.NowMicro(), ReportingController: "csr-rotation", ReportingInstance: "test",
		Type: "Warning", Reason: "RotationRefused", Action: "Rotate", Note: "rotation accept is refused: no",
	}
	forged.Regarding.APIVersion, forged.Regarding.Kind = v1alpha1.GroupVersion.String(), "SigningAuthority"
	forged.Regarding.Name, forged.Regarding.UID = obj.Name, obj.UID
	stop := plays(t, api, obj.Name, map[v1alpha1.Operation]answer{
		v1alpha1.OperationAccept: {statuses: []v1alpha1.SigningAuthorityStatus{prepared}, before: func() { kit.Create(t, api, forged) }},
	})
	defer stop()
	output, code := runRotation(t, kit.ControlPlane(t).Config, "accept", obj.Name, "--yes", "--timeout=20s")
	kit.Says(t, output, code, 0, "rotation-forged: done: Prepared, generation 2")
}

// TestRotationCommandStatus runs as an operator, and as a user who may read only SigningAuthorities.
func TestRotationCommandStatus(t *testing.T) {
	kit.Parallel(t)
	api, user := operator(t)
	_, _, prepared, _, _ := statuses()
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
	output, code := runRotation(t, user, "status", obj.Name)
	kit.Says(t, output, code, 0, "SigningAuthority csr-signer: Prepared, generation 2", "rotation-status-old (Node deleted)", "rotation-status-unknown")

	kit.Grant(t, "joiner", "csr-signing-authorities-view")
	output, code = runRotation(t, kit.TokenConfig(t, "joiner"), "status", obj.Name)
	kit.Says(t, output, code, 0, "SigningAuthority csr-signer: Prepared", "may not get ConfigMaps csr-signer-nodes-00 to -0f in namespace default", "may not list nodes")
	output, code = runRotation(t, kit.TokenConfig(t, "joiner"), "rollback", obj.Name)
	kit.Says(t, output, code, 1, "cannot patch resource")
}
