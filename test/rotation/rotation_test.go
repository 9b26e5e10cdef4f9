package rotation

import (
	"bytes"
	"context"
	"crypto/x509/pkix"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// run runs options under the shipped roles, until stop is called or the test ends.
func (r *rotating) run(t *testing.T, options controllers.Options) (stop func()) {
	t.Helper()
	mgr := kit.NewManager(t, r.managerConfig(t), manager.Options{Scheme: r.admin.Scheme()})
	if err := options.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func (r *rotating) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	obj := &corev1.Secret{}
	if err := r.admin.Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: name}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// TestRotation goes through all phases with a real API server whose client CA file follows the published bundle. A user
// with only the shipped role for operators requests the operations, with the real plugin. An Event, which others may
// write, decides nothing.
func TestRotation(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	r.run(t, controllers.Options{Rotation: &rotation.Reconciler{}})
	r.authority(t, "cluster", "signing-ca", nil)
	adopted := r.reaches(t, "cluster", v1alpha1.Completed, nil)
	if adopted.Status.Signing.AdoptedAt == nil || !bytes.Equal(r.bundle(t, "cluster"), r.CA.CertPEM) {
		t.Errorf("the CA was not adopted: %+v", adopted.Status)
	}
	kit.Grant(t, "stranger", "csr-rotation-operator")
	operate := func(want int, operation string, parts ...string) {
		t.Helper()
		output, code := runRotation(t, kit.TokenConfig(t, "stranger"), strings.Fields(operation)...)
		kit.Says(t, output, code, want, parts...)
	}
	forged := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "cluster-", Namespace: "default"},
		EventTime:  metav1.NowMicro(), ReportingController: "csr-rotation", ReportingInstance: "test",
		Type: "Warning", Reason: "RotationRefused", Action: "Rotate", Note: "rotation start is refused: no",
	}
	forged.Regarding.APIVersion, forged.Regarding.Kind = v1alpha1.GroupVersion.String(), "SigningAuthority"
	forged.Regarding.Name, forged.Regarding.UID = "cluster", adopted.UID
	kit.Create(t, r.admin, forged)

	operate(1, "complete cluster --yes", "rotation complete is refused: the phase is Completed; allowed now: rotation start, rotation attest")
	operate(1, "start cluster --timeout=8s", "not done within 8s: Preparing", "answers 401", "the manager continues")
	operate(1, "wait cluster --timeout=2s", "waiting at most 2s (--timeout) until the new CA is trusted and signs", "not done within 2s: Preparing")
	waiting := r.get(t, "cluster")
	if got := strings.Join(waiting.Status.WaitingFor, " "); !strings.Contains(got, strings.TrimPrefix(r.Config.Host, "https://")+": ") {
		t.Errorf("the API server that does not trust the candidate is not named: %+v", waiting.Status)
	}
	if !bytes.HasSuffix(r.bundle(t, "cluster"), r.CA.CertPEM) || len(r.bundle(t, "cluster")) <= len(r.CA.CertPEM) {
		t.Errorf("published is not the new one and then the old one")
	}
	unfeed := r.feed(t)
	operate(0, "wait cluster --timeout=60s", "cluster: done: Prepared, generation 2")
	prepared := r.get(t, "cluster")
	if prepared.Status.Retiring.KeyID != adopted.Status.Signing.KeyID || prepared.Status.Generation != 2 {
		t.Errorf("what retires is not what signed: %+v", prepared.Status)
	}

	operate(1, "complete cluster", "destroys its key. You cannot go back", "rotation complete: not requested: to do it, run kubectl csr rotation complete cluster --yes")
	for range 2 { // the earlier result is not taken for the answer, and does not hide it
		operate(1, "complete cluster --yes", "rotation complete is refused: certificates that others have issued")
	}
	r.tells(t, "cluster", "RotationRefused", "others have issued")
	operate(0, "attest cluster --yes", "cluster: done: Prepared, generation 2")
	operate(0, "accept cluster --yes", "cluster: done: Prepared, generation 2")
	stolen := signedBy(t, kit.Load(t, r.CA), pkix.Name{CommonName: "stolen"}, time.Hour)
	unfeed()
	operate(1, "complete cluster --yes --timeout=8s", "not done within 8s: Completing", "knows the subject of a new client certificate of this CA")
	if len(r.secret(t, "signing-ca").Data["retiring.key"]) == 0 {
		t.Error("the old key is gone while the API server accepts the old CA")
	}
	r.isTakenFor(t, stolen, "stolen")
	r.feed(t)
	operate(0, "wait cluster --timeout=60s", "cluster: done: Completed, generation 2")
	r.isTakenFor(t, stolen, "")
	if err := holds(t.Context(), publisher(t, r.Config), false, r.CA); err != nil {
		t.Error(err)
	}
	completed := r.get(t, "cluster")
	if completed.Status.Signing.KeyID != prepared.Status.Signing.KeyID || completed.Status.Retiring != nil {
		t.Errorf("completed with %+v", completed.Status)
	}
	data := r.secret(t, "signing-ca").Data
	for key, value := range data {
		if bytes.Contains(value, r.CA.KeyPEM) {
			t.Errorf("%s still holds the old key", key)
		}
	}
	if !bytes.Equal(data["tls.crt"], data["signing.crt"]) || bytes.Contains(r.bundle(t, "cluster"), r.CA.CertPEM) {
		t.Error("the Secret or the bundle still has the old CA")
	}
}
