package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// checkNode runs the command about a node as an administrator, with a CA in files.
func checkNode(t *testing.T, node string, args ...string) (output string, exitCode int) {
	t.Helper()
	return runCheck(t, controlPlane(t).Config, append([]string{"--node", node}, args...)...)
}

// TestCheckNodeWithoutARequest is KEP-266's first step: the kubelet has created no request.
func TestCheckNodeWithoutARequest(t *testing.T) {
	parallel(t)
	output, code := checkNode(t, "check-none")
	says(t, output, code, 1, "no request for system:node:check-none is there", "journalctl -u kubelet", "there is no such Node", "check: node check-none: 1 requested is failed")
}

// TestCheckNodeNotApproved is the second step: the requester has no permission, or the request was denied.
func TestCheckNodeNotApproved(t *testing.T) {
	parallel(t)
	grant(t, "stranger", mayCreate)
	startLoop(t, csrenv.Options{})
	refused := createRequest(t, as(t, "stranger"), nodeRequest(t, "check-refused"))
	hasEvent(t, refused, "NotAuthorized")
	output, code := checkNode(t, "check-refused")
	says(t, output, code, 1, refused.Name, `by "stranger" with groups ["strangers" "system:authenticated"]`, "NotAuthorized: user", "; Event NotAuthorized says the same",
		"kubectl create clusterrolebinding approve-nodeclient-stranger --clusterrole="+mayJoin+" --user=stranger",
		"check: node check-refused: 2 approved is failed")
	row(t, output, "1 requested", "ok")

	decide(t, refused, certificatesv1.CertificateDenied)
	output, code = checkNode(t, "check-refused")
	says(t, output, code, 1, "Denied at ", "ByHand: Decided by a test.", "it stays denied", "2 approved is failed")

	// A serving certificate that no rule approves is reported too.
	serving := createRequest(t, admin(t), nodeRequest(t, "check-refused", func(obj *request) {
		obj.Spec.SignerName = certificatesv1.KubeletServingSignerName
	}))
	output, _ = checkNode(t, "check-refused")
	says(t, output, 1, 1, "nothing in this configuration approves requests for kubernetes.io/kubelet-serving", "kubectl certificate approve "+serving.Name)
}

// TestCheckNodeBlocked checks that the block list is reported as the reason why a node's request waits, before and
// after its approval.
func TestCheckNodeBlocked(t *testing.T) {
	parallel(t)
	create(t, admin(t), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "check-blocked"}, Data: map[string]string{"nodes": "check-blocked"}})
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	args := append(caFiles(t, controlPlane(t).CA), "--node-block-list", "default/check-blocked")
	var blocked *request
	eventually(t, "the request is made", func(ctx context.Context) error {
		blocked = nodeRequest(t, "check-blocked")
		return as(t, "joiner").Create(ctx, blocked)
	})
	t.Cleanup(func() { _ = admin(t).Delete(context.Background(), blocked) })
	output, code := checkNode(t, "check-blocked", args...)
	says(t, output, code, 1, "NodeBlocked: ", "check: node check-blocked: 2 approved is failed")
	approve(t, blocked)
	output, code = checkNode(t, "check-blocked", args...)
	says(t, output, code, 1, "NodeBlocked: ", "check: node check-blocked: 3 issued is failed")
}

// TestCheckNodeAsksTheInventory has a request whose decision depends on what is known of its node.
func TestCheckNodeAsksTheInventory(t *testing.T) {
	parallel(t)
	newNode(t, "check-serving", "192.0.2.61")
	createRequest(t, kubeletOf(t, "check-serving"), servingRequest(t, "check-serving", "192.0.2.62"))
	output, code := checkNode(t, "check-serving", "--config", servingConfig(t, ""))
	says(t, output, code, 1, "SANNotOwned: ")
}

// TestCheckNodeNotIssued is the third step: the request is approved, and there is no signer, or no CA.
func TestCheckNodeNotIssued(t *testing.T) {
	parallel(t)
	startLoop(t, csrenv.Options{}, "approver", "cleaner")
	waiting := createRequest(t, admin(t), nodeRequest(t, "check-unsigned"))
	reaches(t, waiting, csr.Approved)
	output, code := checkNode(t, "check-unsigned", caFiles(t, controlPlane(t).CA)...) // within seconds of the approval
	says(t, output, code, 1, "the signer of this configuration would sign it", "3 issued is unknown", "ask again in a moment")
	output, code = checkNode(t, "check-unsigned", "--controllers=*,-signer")
	says(t, output, code, 1, "nothing in this configuration signs for kubernetes.io/kube-apiserver-client-kubelet", "there is no Event about it", "check: node check-unsigned: 3 issued is failed")
	if line := row(t, output, "2 approved", waiting.Name); !strings.Contains(line, "AutoApproved") {
		t.Errorf("not by whom it was approved: %s", line)
	}
	output, code = checkNode(t, "check-unsigned", "--signing-secret", "default/check-none")
	says(t, output, code, 1, "CAMissing: Secret default/check-none does not exist: create it", "3 issued is failed")
}

// TestCheckNodeNobodyAtWork has requests that wait for longer than any controller takes.
func TestCheckNodeNobodyAtWork(t *testing.T) {
	parallel(t)
	at := metav1.NewTime(time.Now().Add(-time.Minute))
	store := func(node string, mod func(*request)) *request {
		obj := nodeRequest(t, node, mod)
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		obj.Name, obj.UID, obj.CreationTimestamp = node, types.UID(node), at
		if err := controlPlane(t).Store(t.Context(), "certificatesigningrequests/"+obj.Name, obj); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = admin(t).Delete(context.Background(), obj) })
		return obj
	}
	store("check-waits", func(obj *request) { obj.Spec.Username, obj.Spec.Groups = "admin", []string{"system:masters"} })
	output, code := checkNode(t, "check-waits")
	says(t, output, code, 1, "undecided after 6", "s: the approver of this configuration would approve it, but none is at work", "2 approved is failed")

	store("check-approved", func(obj *request) {
		csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Decided by a test.", at.Time)
	})
	output, code = checkNode(t, "check-approved", caFiles(t, controlPlane(t).CA)...)
	says(t, output, code, 1, "the signer of this configuration would sign it, but none is at work", "3 issued is failed")
}

// TestCheckNodeNotAccepted is the fourth step: the API server answers Unauthorized, because it does not trust the CA.
func TestCheckNodeNotAccepted(t *testing.T) {
	parallel(t)
	other := newCA(t)
	startLoop(t, csrenv.Options{CA: other})
	obj := reaches(t, createRequest(t, admin(t), nodeRequest(t, "check-foreign")), csr.Issued)

	// With the CA it is proven, and without the CA it is observed.
	output, code := checkNode(t, "check-foreign", caFiles(t, other)...)
	says(t, output, code, 1, "answers 401 to a client certificate of this CA", "append its CA", "check: node check-foreign: 4 accepted is failed")
	row(t, output, "3 issued", obj.Name)
	output, code = checkNode(t, "check-foreign", caFiles(t, controlPlane(t).CA)...)
	says(t, output, code, 1, "is not trusted by client-ca-file of ConfigMap kube-system/extension-apiserver-authentication", "4 accepted is failed")
}

// TestCheckNodeWell checks a node whose certificate works, with and without its request.
func TestCheckNodeWell(t *testing.T) {
	parallel(t)
	startLoop(t, csrenv.Options{})
	obj := reaches(t, createRequest(t, admin(t), nodeRequest(t, "check-well")), csr.Issued)
	output, code := checkNode(t, "check-well", caFiles(t, controlPlane(t).CA)...)
	says(t, output, code, 1, "there is no such Node", "its certificate is not the reason", "check: node check-well: node is failed")
	row(t, output, "4 accepted", "ok")

	registerNode(t, "check-well", corev1.ConditionTrue)
	output, code = checkNode(t, "check-well", caFiles(t, controlPlane(t).CA)...)
	says(t, output, code, 1, "Ready when it last said so, but it has no Lease", "node is failed")

	lease := renewLease(t, "check-well")
	output, code = checkNode(t, "check-well", caFiles(t, controlPlane(t).CA)...)
	says(t, output, code, 0, "X509SHA256=", "Ready, and its Lease was renewed", obj.Name)
	output, code = checkNode(t, "check-well")
	says(t, output, code, 0, `issuer "CN=csrenv" is in client-ca-file`)

	// A user who may only list requests.
	lister := grant(t, "joiner", mayCreate)
	eventuallySays(t, "joiner", "check-well", "unknown: may not get nodes", "is unknown: may not read it", "4 accepted is unknown")
	if err := admin(t).Delete(t.Context(), lister); err != nil {
		t.Fatal(err)
	}
	eventuallySays(t, "joiner", "check-well", "unknown: may not list certificatesigningrequests", "1 requested is unknown")

	if err := admin(t).Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	output, code = checkNode(t, "check-well")
	says(t, output, code, 0, "there is no request, and none is needed")

	old := metav1.NewMicroTime(time.Now().Add(-2 * time.Hour))
	lease.Spec.RenewTime = &old
	if err := admin(t).Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	output, code = checkNode(t, "check-well")
	says(t, output, code, 1, "its Lease was renewed 120m ago", "check: node check-well: 1 requested is failed")
}

// registerNode makes a Node that is Ready or not.
func registerNode(t *testing.T, name string, ready corev1.ConditionStatus) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	create(t, admin(t), node)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	if err := admin(t).Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// renewLease creates the Lease of a kubelet that was renewed just now, for an hour.
func renewLease(t *testing.T, name string) *coordinationv1.Lease {
	t.Helper()
	seconds, renewed := int32(3600), metav1.NewMicroTime(time.Now())
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}}
	_ = admin(t).Create(t.Context(), namespace) // the API server creates it too
	create(t, admin(t), lease)
	return lease
}

// TestCheckNodeNotReady checks a node whose certificate works, and that is not ready for another reason. Its request
// was deleted long ago, and it needs none.
func TestCheckNodeNotReady(t *testing.T) {
	parallel(t)
	registerNode(t, "check-no-network", corev1.ConditionFalse)
	renewLease(t, "check-no-network")
	output, code := checkNode(t, "check-no-network")
	says(t, output, code, 1, "there is no request, and none is needed", "not Ready; its Lease was renewed", "its certificate is not the reason",
		"kubectl describe node check-no-network", "check: node check-no-network: node is failed")
	if line := row(t, output, "1 requested", "check-no-network"); !strings.Contains(line, " ok ") {
		t.Errorf("not ok: %s", line)
	}
}

// TestCheckNodeByOthers has requests of other requesters with the node's name. One requester is another node.
func TestCheckNodeByOthers(t *testing.T) {
	parallel(t)
	now := time.Now()
	store := func(name, user string, groups []string, age time.Duration) {
		obj := nodeRequest(t, "check-wanted")
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		obj.Name, obj.GenerateName, obj.UID, obj.CreationTimestamp = name, "", types.UID(name), metav1.NewTime(now.Add(-age))
		obj.Spec.Username, obj.Spec.Groups = user, groups
		if err := controlPlane(t).Store(t.Context(), "certificatesigningrequests/"+name, obj); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = admin(t).Delete(context.Background(), obj) })
	}
	store("check-by-thief", "system:node:check-thief", []string{"system:nodes", "system:authenticated"}, time.Minute)
	output, code := checkNode(t, "check-wanted")
	says(t, output, code, 1, "system:node:check-thief asks for the identity of another node", "kubectl certificate deny check-by-thief", "2 approved is failed")
	if strings.Contains(output, "clusterrolebinding") {
		t.Errorf("a binding is proposed:\n%s", output)
	}

	store("check-by-token", "system:bootstrap:abcdef", []string{"system:bootstrappers", "system:authenticated"}, 2*time.Minute)
	output, code = checkNode(t, "check-wanted")
	says(t, output, code, 1, "if this group is to join nodes: kubectl create clusterrolebinding approve-nodeclient-bootstrappers ", "2 approved is failed")
	line := row(t, output, "1 requested", "check-by-token")
	if !strings.Contains(line, "passed over: the newer request check-by-thief, made ") || !strings.Contains(line, `ago by "system:node:check-thief", who is neither`) {
		t.Errorf("the other request is not mentioned: %s", line)
	}

	// A group that the configuration names counts too.
	store("check-by-custom", "custom", []string{"check-customs"}, 90*time.Second)
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
selfCheck: {bootstrapGroups: [check-customs]}
`))
	output, _ = checkNode(t, "check-wanted", "--config", file)
	row(t, output, "1 requested", "check-by-custom")
}

// eventuallySays waits until the output for a user, whose rights have changed, contains every part.
func eventuallySays(t *testing.T, user, node string, parts ...string) {
	t.Helper()
	eventually(t, "what "+user+" may not read is unknown", func(context.Context) error {
		output, code := runCheck(t, tokenConfig(t, user), "--node", node)
		for _, part := range parts {
			if !strings.Contains(output, part) || code != 1 {
				return fmt.Errorf("exit code %d, %q is not in:\n%s", code, part, output)
			}
		}
		return nil
	})
}
