package manager

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// startBlockListManager runs a manager with a block list under the shipped roles. It approves serving certificates.
func startBlockListManager(t *testing.T, args ...string) *kit.Process {
	t.Helper()
	kit.InstallRBAC(t)
	kit.Apply(t, "kubelet-serving")
	kit.Apply(t, "node-block-list")
	kit.GrantJoining(t, "joiner")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"+
		"nodeBlockList: "+kit.BlockListName+"\napproval: {kubeletServing: {enabled: true}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return kit.StartManager(t, kit.ServiceAccountConfig(t), append([]string{"--leader-elect=false", "--config", file}, args...)...)
}

// block changes the ConfigMap.
func block(t *testing.T, obj *corev1.ConfigMap, text string) {
	t.Helper()
	obj.Data["nodes"] = text
	if err := kit.Admin(t).Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// TestBlockList blocks a node and unblocks it. Meanwhile neither the approver nor the signer serves it, whatever the
// signer and whoever approved. After that, waiting requests continue within a second.
func TestBlockList(t *testing.T) {
	kit.Parallel(t)
	list := kit.BlockList(t, "# nobody yet\n")
	p := startBlockListManager(t)
	const node = "block-a"
	kit.NewNode(t, node, "192.0.2.60")
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, node)), csr.Issued)

	block(t, list, "Block-A # taken over\nnot a name\n")
	kit.HasEvent(t, list, "BlockListInvalid", `line 2: "not a name" is not a node name`)
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1", "csr_block_list_problems 1")
	kubelet := kit.KubeletOf(t, node)
	waiting := map[string]*kit.Request{
		"bootstrap": kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, node)),
		"renewal":   kit.CreateRequest(t, kubelet, kit.NodeRequest(t, node)),
		"serving":   kit.CreateRequest(t, kubelet, kit.ServingRequest(t, node, "192.0.2.60")),
	}
	byHand := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, node))
	kit.Approve(t, byHand)
	waiting["approved by hand"] = byHand
	for what, obj := range waiting {
		kit.HasEvent(t, obj, "NodeBlocked", `node "`+node+`" is on the block list, ConfigMap `+kit.BlockListName)
		if state := csr.StateOf(kit.Reload(t, obj)); state != csr.Pending && !strings.Contains(what, "by hand") || len(obj.Status.Certificate) > 0 || state == csr.Failed {
			t.Errorf("%s: it is %s", what, state)
		}
	}
	// All other nodes are served.
	kit.NewNode(t, "block-b", "192.0.2.61")
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "block-b")), csr.Issued)
	kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, "block-b"), kit.ServingRequest(t, "block-b", "192.0.2.61")), csr.Issued)
	kit.Reaches(t, kit.ApprovedClient(t, node), csr.Issued)

	for _, obj := range waiting {
		if csr.StateOf(obj) == csr.Pending {
			backdate(t, obj)
		}
	}
	block(t, list, "")
	for _, obj := range waiting {
		kit.Reaches(t, obj, csr.Issued)
	}
	checkStop(t, p)
}

// TestBlockListIsMissing starts without a list: requests of nodes wait until there is a list. After the list is
// deleted, its last version stays in use.
func TestBlockListIsMissing(t *testing.T) {
	kit.Parallel(t)
	p := startBlockListManager(t)
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "[-]block-list failed")
	held := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "missing-a"))
	kit.HasEvent(t, held, "InventoryUnavailable", "ConfigMap "+kit.BlockListName+": it does not exist")
	byHand := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "missing-b"))
	kit.Approve(t, byHand)
	kit.HasEvent(t, byHand, "InventoryUnavailable", "ConfigMap "+kit.BlockListName+": it does not exist")
	byCertificate := kit.ApprovedClient(t, "missing-user") // the administrator has a client certificate
	kit.HasEvent(t, byCertificate, "InventoryUnavailable", "ConfigMap "+kit.BlockListName+": it does not exist")
	kit.Reaches(t, kit.ApprovedClientOf(t, kit.As(t, "joiner"), "missing-user"), csr.Issued) // by a token, and not for a node

	list := kit.BlockList(t, "missing-a")
	kit.Reaches(t, byHand, csr.Issued)
	kit.Reaches(t, byCertificate, csr.Issued)
	kit.HasEvent(t, held, "NodeBlocked", `node "missing-a"`)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)

	if err := kit.Admin(t).Delete(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	kit.HasEvent(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: list.Name}}, "BlockListMissing", "the last version stays in use: blocked nodes: missing-a")
	again := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "missing-a"))
	kit.HasEvent(t, again, "NodeBlocked")
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "missing-c")), csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	checkStop(t, p)
}

// TestBlockListMayNotBeRead runs without the component's role.
func TestBlockListMayNotBeRead(t *testing.T) {
	kit.Parallel(t)
	kit.BlockList(t, "")
	p := startBlockListManager(t, "--node-block-list=default/another")
	held := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "forbidden-a"))
	kit.HasEvent(t, held, "InventoryUnavailable", "ConfigMap default/another: it can't be read", "is forbidden")
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "[-]block-list failed", "[-]own-rights failed")
	if state := csr.StateOf(kit.Reload(t, held)); state != csr.Pending {
		t.Errorf("it is %s", state)
	}
}
