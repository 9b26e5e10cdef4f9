package rotation

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	issuedledger "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestRotation goes through all phases with a real API server whose client CA file follows the published bundle. A user
// with only the shipped role for operators requests the operations, with the real plugin. An Event, which others may
// write, decides nothing. Another authority delays nothing, although its API servers accept connections and never answer, so
// that each of its rounds takes ten seconds.
func TestRotation(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // the kernel accepts connections, and no process reads
	kit.NoError(t, err)
	defer func() { _ = silent.Close() }()
	r.run(t, controllers.Options{Rotation: &rotation.Reconciler{}})
	r.authority(t, "silent", "silent-ca", published("silent"), silent.Addr().String())
	r.reaches(t, "silent", v1alpha1.Preparing, func(s *v1alpha1.SigningAuthorityStatus) bool {
		return strings.Contains(strings.Join(s.WaitingFor, " "), silent.Addr().String())
	})
	r.bring(t, "signing-ca", r.CA)
	at, old := published("cluster"), string(r.CA.CertPEM)
	r.authority(t, "cluster", "signing-ca", at)
	adopted := r.reaches(t, "cluster", v1alpha1.Completed, nil)
	kit.Check(t, adopted.Signing.AdoptedAt != nil && r.bundle(t, at) == old, "the CA was not adopted: %+v", adopted)
	kit.Grant(t, "stranger", "csr-rotation-operator")
	operate := func(want int, operation string, parts ...string) {
		t.Helper()
		output, code := runRotation(t, "stranger", strings.Fields(operation)...)
		kit.Says(t, output, code, want, parts...)
	}
	forged := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "cluster-", Namespace: "default"},
		EventTime:  metav1.NowMicro(), ReportingController: "csr-rotation", ReportingInstance: "test",
		Type: "Warning", Reason: "RotationRefused", Action: "Rotate", Note: "rotation start is refused: no",
	}
	forged.Regarding.APIVersion, forged.Regarding.Kind = v1alpha1.GroupVersion.String(), "SigningAuthority"
	forged.Regarding.Name, forged.Regarding.UID = "cluster", r.get(t, "cluster").UID
	kit.Create(t, r.admin, forged)

	operate(1, "complete cluster --yes", "rotation complete is refused: the phase is Completed; allowed now: rotation start, rotation attest")
	operate(1, "start cluster --timeout=8s", "not done within 8s: Preparing", "answers 401", "the manager continues")
	operate(1, "wait cluster --timeout=2s", "waiting at most 2s (--timeout) until the new CA is trusted and signs", "not done within 2s: Preparing")
	if waiting := strings.Join(r.get(t, "cluster").Status.WaitingFor, " "); !strings.Contains(waiting, strings.Trim(r.Config.Host, "/")+" answers 401") {
		t.Errorf("the API server that does not trust the candidate is not named: %s", waiting)
	}
	if bundle := r.bundle(t, at); !strings.HasSuffix(bundle, old) || len(bundle) <= len(old) {
		t.Errorf("published is not the new one and then the old one")
	}
	unfeed := r.feed(t)
	operate(0, "wait cluster --timeout=60s", "cluster: done: Prepared, generation 2")
	prepared := r.get(t, "cluster").Status
	kit.Check(t, prepared.Retiring.KeyID == adopted.Signing.KeyID && prepared.Generation == 2,
		"what retires is not what signed: %+v", prepared)

	operate(1, "complete cluster", "destroys its key. You cannot go back",
		"rotation complete: not requested: to do it, run kubectl csr rotation complete cluster --yes")
	for range 2 { // the earlier result is not taken for the answer, and does not hide it
		operate(1, "complete cluster --yes", "rotation complete is refused: certificates that others have issued")
	}
	r.hasEvent(t, "cluster", "RotationRefused", "others have issued")
	operate(0, "attest cluster --yes", "cluster: done: Prepared, generation 2")
	operate(0, "accept cluster --yes", "cluster: done: Prepared, generation 2")
	stolen := signedBy(t, kit.Load(t, r.CA), pkix.Name{CommonName: "stolen"}, time.Hour)
	unfeed()
	operate(1, "complete cluster --yes --timeout=8s", "not done within 8s: Completing", "knows the subject of a new client certificate of this CA")
	kit.Check(t, len(r.secret(t, "signing-ca").Data["retiring.key"]) > 0, "the old key is gone while the API server accepts the old CA")
	r.isTakenFor(t, stolen, "stolen")
	r.feed(t)
	operate(0, "wait cluster --timeout=60s", "cluster: done: Completed, generation 2")
	r.isTakenFor(t, stolen, "")
	_, held, err := publisher(t, r.Config).ClientCAs(t.Context())
	kit.Check(t, err == nil && len(held) > 0 && !slices.ContainsFunc(held, kit.Certificate(t, r.CA).Equal),
		"extension-apiserver-authentication has %d CAs, or the old one, error %v", len(held), err)
	if now := r.get(t, "cluster").Status; now.Signing.KeyID != prepared.Signing.KeyID || now.Retiring != nil {
		t.Errorf("completed with %+v", now)
	}
	data := r.secret(t, "signing-ca").Data
	for key, value := range data {
		kit.Check(t, !bytes.Contains(value, r.CA.KeyPEM), "%s still holds the old key", key)
	}
	kit.Check(t, bytes.Equal(data["tls.crt"], data["signing.crt"]) && !strings.Contains(r.bundle(t, at), old),
		"the Secret or the bundle still has the old CA")
	r.reaches(t, "silent", v1alpha1.Preparing, nil)
}

// TestAuthority goes through the life of an authority that begins with an empty Secret. Its owner brings an invalid CA and a
// valid one, can't complete while certificates are outstanding, goes back, and accepts to break what is left.
func TestAuthority(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	r.feed(t)
	const name = "life"
	// No signer for kubelets runs here: that is kube-controller-manager, which has the CA too.
	r.run(t, r.signing(t, name, time.Hour))
	r.authority(t, name, name, published(name))
	status := r.reaches(t, name, v1alpha1.Completed, nil)
	first := status.Signing
	kit.Check(t, first.AdoptedAt == nil && status.Generation == 1, "it is not the first of its own: %+v", status)
	maria := r.user(t, "maria", first)
	made := r.secret(t, name)
	if !slices.Contains(made.Finalizers, keypair.Finalizer) || !bytes.Equal(made.Data["tls.crt"], made.Data["signing.crt"]) ||
		len(made.Data["candidate.key"]) > 0 {
		t.Errorf("the Secret is not that of a CA that signs, or has no finalizer: %q", made.Finalizers)
	}

	// An edit that can't be used stops the rotation, and changes nothing else. The next edit lets it continue.
	r.edit(t, name, []byte("nonsense"), made.Data["tls.key"])
	const restore = "copy signing.crt and signing.key to tls.crt and tls.key of the Secret: the present content is refused: "
	r.hasEvent(t, name, "RotationStuck", restore+"no PEM block of type CERTIFICATE")
	stopped := meta.FindStatusCondition(r.get(t, name).Status.Conditions, v1alpha1.ConditionReady)
	if stopped.Reason != "RotationStuck" || !strings.Contains(stopped.Message, restore) || !strings.HasSuffix(stopped.Message, "the CA "+first.KeyID+" still signs") {
		t.Errorf("condition %+v", stopped)
	}
	if kept := r.secret(t, name).Data; string(kept["tls.crt"]) != "nonsense" || !bytes.Equal(kept["signing.key"], made.Data["signing.key"]) {
		t.Error("the Secret is not as it was edited")
	}
	_ = r.user(t, "nora", first)
	own := kit.NewCA(t)
	r.edit(t, name, own.CertPEM, own.KeyPEM)
	second := r.reaches(t, name, v1alpha1.Prepared, nil).Signing
	kit.Check(t, second.KeyID == kit.Load(t, own).KeyID() && second.AdoptedAt != nil && second.Generation == 2,
		"what signs is not the CA that was brought: %+v", second)
	bruno := r.user(t, "bruno", second)

	old := kit.Must(ca.Load(made.Data["tls.crt"], made.Data["tls.key"], nil))(t)
	foreign := signedBy(t, old, pkix.Name{CommonName: csr.NodeUserPrefix + "foreign", Organization: []string{csr.NodeGroup}}, 3*time.Hour)
	refused := func(signer string, pair tls.Certificate) {
		t.Helper()
		left := r.leftOf(t, name, signer, pair.Leaf.NotAfter)
		if ahead := left.Sub(pair.Leaf.NotAfter); ahead > 5*time.Minute {
			t.Errorf("the ledger is %s ahead of the only certificate", ahead)
		}
		r.does(t, name, v1alpha1.OperationComplete)
		text := fmt.Sprintf("certificates of %s from the CA %s are valid until %s", signer, first.KeyID, left.UTC().Format(time.RFC3339))
		r.hasEvent(t, name, "RotationRefused", text)
		r.reaches(t, name, v1alpha1.Prepared, nil)
	}
	refused(userSigner, maria)
	obj := kit.CreateRequest(t, r.admin, kit.NodeRequest(t, "foreign"))
	kit.Approve(t, obj)
	obj.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: foreign.Leaf.Raw}) // another signer stores it
	kit.NoError(t, r.admin.Status().Update(t.Context(), obj))
	refused(kubeletSigner, foreign)
	err := r.admin.Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: name + "-moved"}, &corev1.ConfigMap{})
	kit.Check(t, apierrors.IsNotFound(err), "the node counts as moved with a certificate of the CA that retires: %v", err)

	kit.Eventually(t, "the old CA signs again", func(context.Context) error {
		r.does(t, name, v1alpha1.OperationRollback) // refused until it is proven that every verifier trusts the old CA
		status := r.reaches(t, name, v1alpha1.Prepared, func(s *v1alpha1.SigningAuthorityStatus) bool { return !s.Answered() && s.Intent == "" })
		return kit.OrError(status.Signing.KeyID == first.KeyID, "it is %s", status.Signing.KeyID)
	})
	kit.Eventually(t, "the node has moved to the CA that signs again", func(ctx context.Context) error {
		obj := &corev1.ConfigMap{}
		err := r.admin.Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: name + "-moved"}, obj)
		want := map[string]string{"keyID": first.KeyID, "foreign": "kube-apiserver-client-kubelet"}
		return errors.Join(err, kit.OrError(maps.Equal(obj.Data, want), "it holds %v", obj.Data))
	})
	after, node := r.user(t, "after", first), csr.NodeUserPrefix+"foreign"
	for user, pair := range map[string]tls.Certificate{"maria": maria, "bruno": bruno, "after": after, node: foreign} {
		r.isTakenFor(t, pair, user)
	}
	r.does(t, name, v1alpha1.OperationAccept)
	r.completes(t, name)
	r.reaches(t, name, v1alpha1.Completed, nil)
	for user, pair := range map[string]tls.Certificate{"maria": maria, "": bruno, "after": after, node: foreign} {
		r.isTakenFor(t, pair, user)
	}
}

// leftOf waits until the status says that certificates of signer by the retiring CA are valid until then or longer.
func (r *rotating) leftOf(t *testing.T, name, signer string, until time.Time) (left time.Time) {
	t.Helper()
	kit.Eventually(t, "what is left of "+signer, func(context.Context) error {
		outstanding := r.get(t, name).Status.Outstanding
		for _, one := range outstanding {
			if left = one.Until.Time; one.Signer == signer && !left.Before(until) {
				return nil
			}
		}
		return fmt.Errorf("%+v", outstanding)
	})
	return left
}

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
	kit.NewNode(t, "rotation-status-new")
	kit.NewNode(t, "rotation-status-old")
	api := kit.Admin(t)
	nodes := issuedledger.NewRecorder(api, api, types.NamespacedName{Namespace: "default", Name: obj.Name}, clock.RealClock{})
	nodes.Note(issuedledger.Certificate{Node: "rotation-status-new", Signer: kubeletSigner, KeyID: "two", NotAfter: time.Now().Add(time.Hour)})
	kit.NoError(t, nodes.FlushMoved(t.Context(), "two"))
	says("stranger", "status csr-signer", 0, "SigningAuthority csr-signer: Prepared, generation 2",
		"NODE NOT MOVED YET   LACKS CERTIFICATES OF\nrotation-status-old  kube-apiserver-client-kubelet\n")
	says("joiner", "status csr-signer", 0,
		"SigningAuthority csr-signer: Prepared", "may not get ConfigMap csr-signer-moved in namespace default", "may not list nodes")
	says("joiner", "rollback csr-signer", 1, "cannot patch resource")

	kubeconfig := kit.Must(kit.ControlPlane(t).WriteKubeconfig("printed", kit.ControlPlane(t).Config))(t)
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
