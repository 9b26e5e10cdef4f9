package integration

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const blockListName = systemNamespace + "/csr-node-block-list"

// startBlockListManager runs a manager with a block list under the shipped roles. It approves serving certificates.
func startBlockListManager(t *testing.T, args ...string) *process {
	t.Helper()
	installRBAC(t)
	apply(t, "kubelet-serving")
	apply(t, "node-block-list")
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	grantNodes(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"+
		"nodeBlockList: "+blockListName+"\napproval: {kubeletServing: {enabled: true}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return startManager(t, serviceAccountConfig(t), append([]string{"--leader-elect=false", "--config", file}, args...)...)
}

// grantNodes grants kubelets the right to renew.
func grantNodes(t *testing.T) {
	t.Helper()
	binding := grant(t, "nobody", mayRenewOwn)
	binding.Subjects[0].Kind, binding.Subjects[0].Name = "Group", "system:nodes"
	if err := admin(t).Update(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
}

// blockList creates the ConfigMap.
func blockList(t *testing.T, text string) *corev1.ConfigMap {
	t.Helper()
	installRBAC(t)
	obj := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-node-block-list"}, Data: map[string]string{"nodes": text},
	}
	create(t, admin(t), obj)
	return obj
}

// block changes the ConfigMap.
func block(t *testing.T, obj *corev1.ConfigMap, text string) {
	t.Helper()
	obj.Data["nodes"] = text
	if err := admin(t).Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// approvedClient returns a request for a client certificate of user. The administrator has made and approved it.
func approvedClient(t *testing.T, user string) *request {
	t.Helper()
	return approvedClientOf(t, admin(t), user)
}

// approvedClientOf is approvedClient, but c makes the request.
func approvedClientOf(t *testing.T, c client.Client, user string) *request {
	t.Helper()
	obj := createRequest(t, c, nodeRequest(t, "", func(obj *request) {
		obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
		obj.Spec.Request = payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: user}})
	}))
	approve(t, obj)
	return obj
}

// TestBlockList blocks a node and unblocks it. Meanwhile neither the approver nor the signer serves it, whatever the
// signer and whoever approved. After that, waiting requests continue within a second.
func TestBlockList(t *testing.T) {
	parallel(t)
	list := blockList(t, "# nobody yet\n")
	p := startBlockListManager(t)
	const node = "block-a"
	newNode(t, node, "192.0.2.60")
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, node)), csr.Issued)

	block(t, list, "Block-A # taken over\nnot a name\n")
	hasEvent(t, list, "BlockListInvalid", `line 2: "not a name" is not a node name`)
	p.answers(t, p.metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1", "csr_block_list_problems 1")
	kubelet := kubeletOf(t, node)
	waiting := map[string]*request{
		"bootstrap": createRequest(t, as(t, "joiner"), nodeRequest(t, node)),
		"renewal":   createRequest(t, kubelet, nodeRequest(t, node)),
		"serving":   createRequest(t, kubelet, servingRequest(t, node, "192.0.2.60")),
		"by hand":   approvedClient(t, csr.NodeUserPrefix+node),
	}
	byHand := createRequest(t, as(t, "joiner"), nodeRequest(t, node))
	approve(t, byHand)
	waiting["approved by hand"] = byHand
	for what, obj := range waiting {
		hasEvent(t, obj, "NodeBlocked", `node "`+node+`" is on the block list, ConfigMap `+blockListName)
		if state := csr.StateOf(reload(t, obj)); state != csr.Pending && !strings.Contains(what, "by hand") || len(obj.Status.Certificate) > 0 || state == csr.Failed {
			t.Errorf("%s: it is %s", what, state)
		}
	}
	// All other nodes are served.
	newNode(t, "block-b", "192.0.2.61")
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "block-b")), csr.Issued)
	reaches(t, createRequest(t, kubeletOf(t, "block-b"), servingRequest(t, "block-b", "192.0.2.61")), csr.Issued)
	reaches(t, approvedClient(t, node), csr.Issued)

	for _, obj := range waiting {
		if csr.StateOf(obj) == csr.Pending {
			backdate(t, obj)
		}
	}
	block(t, list, "")
	for _, obj := range waiting {
		reaches(t, obj, csr.Issued)
	}
	checkStop(t, p)
}

// TestBlockListIsMissing starts without a list: requests of nodes wait until there is a list. After the list is
// deleted, its last version stays in use.
func TestBlockListIsMissing(t *testing.T) {
	parallel(t)
	p := startBlockListManager(t)
	p.answers(t, p.probes, "/readyz?verbose", http.StatusInternalServerError, "[-]block-list failed")
	held := createRequest(t, as(t, "joiner"), nodeRequest(t, "missing-a"))
	hasEvent(t, held, "InventoryUnavailable", "ConfigMap "+blockListName+": it does not exist")
	byHand := createRequest(t, as(t, "joiner"), nodeRequest(t, "missing-b"))
	approve(t, byHand)
	hasEvent(t, byHand, "InventoryUnavailable", "ConfigMap "+blockListName+": it does not exist")
	byCertificate := approvedClient(t, "missing-user") // the administrator has a client certificate
	hasEvent(t, byCertificate, "InventoryUnavailable", "ConfigMap "+blockListName+": it does not exist")
	reaches(t, approvedClientOf(t, as(t, "joiner"), "missing-user"), csr.Issued) // by a token, and not for a node

	list := blockList(t, "missing-a")
	reaches(t, byHand, csr.Issued)
	reaches(t, byCertificate, csr.Issued)
	hasEvent(t, held, "NodeBlocked", `node "missing-a"`)
	p.answers(t, p.probes, "/readyz", http.StatusOK)

	if err := admin(t).Delete(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	hasEvent(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: list.Name}}, "BlockListMissing", "the last version stays in use: blocked nodes: missing-a")
	again := createRequest(t, as(t, "joiner"), nodeRequest(t, "missing-a"))
	hasEvent(t, again, "NodeBlocked")
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "missing-c")), csr.Issued)
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	checkStop(t, p)
}

// TestBlockListMayNotBeRead runs without the component's role.
func TestBlockListMayNotBeRead(t *testing.T) {
	parallel(t)
	blockList(t, "")
	p := startBlockListManager(t, "--node-block-list=default/another")
	held := createRequest(t, as(t, "joiner"), nodeRequest(t, "forbidden-a"))
	hasEvent(t, held, "InventoryUnavailable", "ConfigMap default/another: it can't be read", "is forbidden")
	p.answers(t, p.probes, "/readyz?verbose", http.StatusInternalServerError, "[-]block-list failed", "[-]own-rights failed")
	if state := csr.StateOf(reload(t, held)); state != csr.Pending {
		t.Errorf("it is %s", state)
	}
}

// TestBlockListOnAStandby checks that a standby knows the list when it takes over.
func TestBlockListOnAStandby(t *testing.T) {
	parallel(t)
	list := blockList(t, "standby-a")
	first := startBlockListManager(t, "--leader-elect=true")
	leader := leaderAfter(t, "")
	hasEvent(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "standby-a")), "NodeBlocked")
	second := startManager(t, serviceAccountConfig(t), "--node-block-list="+blockListName)
	second.answers(t, second.metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1")
	block(t, list, "standby-a\nstandby-b")
	second.answers(t, second.metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 2")
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	leaderAfter(t, leader)
	blocked := createRequest(t, as(t, "joiner"), nodeRequest(t, "standby-b"))
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "standby-c")), csr.Issued)
	hasEvent(t, blocked, "NodeBlocked")
	checkStop(t, second)
}
