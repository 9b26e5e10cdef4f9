package manager

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// startBlockListManager runs a manager with a block list. It approves serving certificates, and renewals.
func startBlockListManager(t *testing.T, args ...string) *kit.Process {
	t.Helper()
	kit.Apply(t, "kubelet-serving")
	kit.Apply(t, "node-block-list")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	config := kit.Configure(t, "nodeBlockList: "+kit.BlockListName+"\napproval: {kubeletServing: {enabled: true}}\n")
	return start(t, append([]string{config}, args...)...)
}

// block changes the ConfigMap.
func block(t *testing.T, obj *corev1.ConfigMap, text string) {
	t.Helper()
	obj.Data["nodes"] = text
	kit.Update(t, obj)
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
	kit.Reaches(t, joins(t, node), csr.Issued)

	block(t, list, "Block-A # taken over\nnot a name\n")
	kit.HasEvent(t, list, "BlockListInvalid", `line 2: "not a name" is not a node name`)
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1", "csr_block_list_problems 1")
	waiting := map[string]*kit.Request{
		"bootstrap": joins(t, node),
		"renewal":   kit.CreateRequest(t, kit.KubeletOf(t, node), kit.NodeRequest(t, node)),
		"serving":   asksFor(t, node, "192.0.2.60"),
	}
	byHand := joins(t, node)
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
	kit.Reaches(t, joins(t, "block-b"), csr.Issued)
	kit.Reaches(t, asksFor(t, "block-b", "192.0.2.61"), csr.Issued)
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
	held := joins(t, "missing-a")
	byHand := joins(t, "missing-b")
	kit.Approve(t, byHand)
	byCertificate := kit.ApprovedClient(t, "missing-user") // the administrator has a client certificate
	for _, obj := range []*kit.Request{held, byHand, byCertificate} {
		kit.HasEvent(t, obj, "InventoryUnavailable", "ConfigMap "+kit.BlockListName+": it does not exist")
	}
	kit.Reaches(t, kit.ApprovedClientOf(t, kit.As(t, "joiner"), "missing-user"), csr.Issued) // by a token, and not for a node

	list := kit.BlockList(t, "missing-a")
	kit.Reaches(t, byHand, csr.Issued)
	kit.Reaches(t, byCertificate, csr.Issued)
	kit.HasEvent(t, held, "NodeBlocked", `node "missing-a"`)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)

	kit.Remove(t, list)
	kit.HasEvent(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: list.Name}}, "BlockListMissing", "the last version stays in use: blocked nodes: missing-a")
	again := joins(t, "missing-a")
	kit.HasEvent(t, again, "NodeBlocked")
	kit.Reaches(t, joins(t, "missing-c"), csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	checkStop(t, p)
}

// TestBlockListMayNotBeRead runs without the component's role.
func TestBlockListMayNotBeRead(t *testing.T) {
	kit.Parallel(t)
	kit.BlockList(t, "")
	p := startBlockListManager(t, "--node-block-list=default/another")
	held := joins(t, "forbidden-a")
	kit.HasEvent(t, held, "InventoryUnavailable", "ConfigMap default/another: it can't be read", "is forbidden")
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "[-]block-list failed", "[-]own-rights failed")
	isPending(t, held)
}

// credentialID is the key under which the API server records the credential of a requester.
const credentialID = "authentication.kubernetes.io/credential-id"

// holder is a client with a certificate of node a.
type holder struct {
	client.Client
	obj    *kit.Request // with the certificate
	sha256 string       // of the certificate, in hex
}

// renewedBy requests a certificate of node a with c. The request names another credential, which the API server ignores.
func renewedBy(t *testing.T, c client.Client) holder {
	t.Helper()
	key := kit.NewKey(t)
	subject := pkix.Name{CommonName: "system:node:a", Organization: []string{csr.NodeGroup}}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	obj := kit.CreateRequest(t, c, kit.NodeRequest(t, "a", func(obj *kit.Request) {
		obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialID: {"X509SHA256=0a"}}
	}))
	kit.Reaches(t, obj, csr.Issued)
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(kit.ControlPlane(t).Config)
	cfg.CertData, cfg.KeyData, cfg.QPS = obj.Status.Certificate, keyPEM, -1
	return holder{kit.ClientOf(t, cfg), obj, fmt.Sprintf("%x", sha256.Sum256(kit.Leaf(t, obj).Raw))}
}

// id returns the credential ID of h.
func (h holder) id() string { return "X509SHA256=" + h.sha256 }

// TestRenewalsAreBoundToTheirCertificates renews a certificate twice. The API server records in each request the
// certificate with which it was made. The audit log names it, explain shows it, and the block list blocks it,
// but not the certificates before and after it.
func TestRenewalsAreBoundToTheirCertificates(t *testing.T) {
	kit.Parallel(t)
	list, records := kit.BlockList(t, ""), filepath.Join(t.TempDir(), "audit.log")
	p := startBlockListManager(t, "--audit-log-path", records)
	first := renewedBy(t, kit.As(t, "joiner"))
	second := renewedBy(t, first)
	third := renewedBy(t, second)
	for name, test := range map[string]struct {
		obj  *kit.Request
		want certificatesv1.ExtraValue
	}{"first": {first.obj, nil}, "second": {second.obj, certificatesv1.ExtraValue{first.id()}}, "third": {third.obj, certificatesv1.ExtraValue{second.id()}}} {
		if diff := cmp.Diff(test.want, test.obj.Spec.Extra[credentialID]); diff != "" {
			t.Errorf("credential of the %s request (-want +got):\n%s", name, diff)
		}
	}
	out, code := kit.RunPlugin(t, kit.ControlPlane(t).Config, "explain", second.obj.Name)
	kit.Says(t, out, code, 0, fmt.Sprintf("made with     %q", first.sha256), fmt.Sprintf("SHA-256       %q", second.sha256))

	list.Data["certificates"] = second.sha256 + " # stolen\n"
	block(t, list, "")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_certificates 1", "csr_block_list_nodes 0", "csr_block_list_problems 0")
	pending, byHand := kit.CreateRequest(t, second, kit.NodeRequest(t, "a")), kit.CreateRequest(t, second, kit.NodeRequest(t, "a"))
	kit.Approve(t, byHand)
	for controller, obj := range map[string]*kit.Request{"csr-approver": pending, "csr-signer": byHand} {
		kit.HasEventBy(t, obj, controller, "CertificateBlocked")
		kit.HasEvent(t, obj, "CertificateBlocked", "client certificate "+second.sha256+" is on the block list, ConfigMap "+kit.BlockListName)
	}
	out, code = kit.RunPlugin(t, kit.ControlPlane(t).Config, "explain", pending.Name)
	kit.Says(t, out, code, 0, "csr-approver CertificateBlocked", "Nothing, or remove its SHA-256 from the list.")
	out, code = kit.RunPlugin(t, kit.ControlPlane(t).Config, "approve", pending.Name, "--yes")
	kit.Says(t, out, code, 1, "not approved: CertificateBlocked: the block list")
	renewedBy(t, first)
	renewedBy(t, third)
	renewedBy(t, kit.As(t, "joiner"))
	if states := csr.StateOf(kit.Reload(t, pending)) + csr.StateOf(kit.Reload(t, byHand)); states != csr.Pending+csr.Approved {
		t.Errorf("the blocked requests are %s", states)
	}

	backdate(t, pending)
	list.Data["certificates"] = ""
	block(t, list, "")
	kit.Reaches(t, pending, csr.Issued)
	kit.Reaches(t, byHand, csr.Issued)
	checkStop(t, p)
	checkCredentials(t, auditRecords(t, records), []holder{first, second, third})
}

// checkCredentials checks that the records of each request name the certificate before it, by the SHA-256 that the
// record of that certificate has.
func checkCredentials(t *testing.T, records []audit.Record, chain []holder) {
	t.Helper()
	issued := ""
	for i, each := range chain {
		var want []string
		if i > 0 {
			want = []string{"X509SHA256=" + issued}
		}
		found := map[audit.Event]int{}
		for _, record := range records {
			if record.UID != each.obj.UID {
				continue
			}
			found[record.Event]++
			if diff := cmp.Diff(want, record.Requester.CredentialIDs); diff != "" {
				t.Errorf("record %s of certificate %d (-want +got):\n%s", record.Event, i, diff)
			}
			if record.Event == audit.Signed {
				issued = record.CertificateSHA256
			}
		}
		if found[audit.Decided] == 0 || found[audit.Signed] != 1 {
			t.Errorf("records of certificate %d: %v", i, found)
		}
	}
}
