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
	"slices"
	"strings"
	"testing"

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

// startWithBlockList runs a manager that reads a block list. It approves serving certificates, and renewals.
func startWithBlockList(t *testing.T, args ...string) *kit.Process {
	t.Helper()
	kit.Apply(t, "kubelet-serving")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	config := kit.Configure(t, "nodeBlockList: "+kit.BlockListName+"\napproval: {kubeletServing: {enabled: true}}\n")
	return start(t, append([]string{config}, args...)...)
}

// block changes the ConfigMap.
func block(t *testing.T, obj *corev1.ConfigMap, nodes, certificates string) {
	t.Helper()
	obj.Data = map[string]string{"nodes": nodes, "certificates": certificates}
	kit.Update(t, obj)
}

// TestBlockList starts without the right to read the list, blocks a node and unblocks it. Meanwhile neither the approver nor the
// signer serves it, whatever the signer and whoever approved. Changes of the list and of Nodes wake the requests that wait for
// them. After the list is deleted, its last version stays in use. TestChanges in pkg/blocklist has more versions of the list.
func TestBlockList(t *testing.T) {
	kit.Parallel(t)
	p := startWithBlockList(t)
	const a, b = "block-a", "block-b"
	held, byHand := joins(t, a), joins(t, b)
	kit.Approve(t, byHand)
	byCertificate := kit.ApprovedClient(t, "a-user") // the administrator has a client certificate
	for _, obj := range []*kit.Request{held, byHand, byCertificate} {
		kit.HasEvent(t, obj, "InventoryUnavailable", "ConfigMap "+kit.BlockListName+": it can't be read", "is forbidden")
	}
	kit.Reaches(t, kit.ApprovedClientOf(t, kit.As(t, "joiner"), "a-user"), csr.Issued) // by a token, and not for a node
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "[-]block-list failed", "[-]own-rights failed")
	list := kit.BlockList(t, "Block-A # taken over\nnot a name\n")
	kit.Apply(t, "node-block-list")
	kit.Reaches(t, byHand, csr.Issued)
	kit.Reaches(t, byCertificate, csr.Issued)
	kit.HasEvent(t, list, "BlockListInvalid", `line 2: "not a name" is not a node name`)
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1", "csr_block_list_problems 1")
	p.Answers(t, p.Probes, "/readyz/block-list", http.StatusOK)

	node := kit.NewNode(t, a, "192.0.2.60", "192.0.2.61")
	pending := []*kit.Request{held, kit.CreateRequest(t, kit.KubeletOf(t, a), kit.NodeRequest(t, a)), asksFor(t, a, "192.0.2.60")}
	approved := joins(t, a)
	kit.Approve(t, approved)
	for _, obj := range append(pending, approved) {
		kit.HasEvent(t, obj, "NodeBlocked", `node "`+a+`" is on the block list, ConfigMap `+kit.BlockListName)
		if state := csr.StateOf(kit.Reload(t, obj)); state != csr.Pending && obj != approved || state == csr.Issued || state == csr.Failed {
			t.Errorf("it is %s", state)
		}
	}
	// All other nodes are served, although the blocked one reports their addresses.
	other := asksFor(t, b, "192.0.2.61")
	kit.HasEvent(t, other, "NodeNotFound", b)
	issuedSoon(t, other, func() { kit.NewNode(t, b, "192.0.2.61") })
	kit.Reaches(t, kit.ApprovedClient(t, a), csr.Issued)

	backdate(t, pending...)
	block(t, list, "", "")
	for _, obj := range append(pending, approved) {
		kit.Reaches(t, obj, csr.Issued)
	}
	other = asksFor(t, b, "192.0.2.61")
	isRefused(t, other, "SANContested", `192.0.2.61 is claimed by node "`+b+`" and by Node `+a)
	issuedSoon(t, other, func() { kit.Publish(t, node, "192.0.2.60") })

	block(t, list, a, "")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1", "csr_block_list_problems 0")
	kit.Remove(t, list)
	gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: list.Name}}
	kit.HasEvent(t, gone, "BlockListMissing", "the last version stays in use: blocked nodes: "+a)
	kit.HasEvent(t, joins(t, a), "NodeBlocked")
	kit.Reaches(t, joins(t, "block-c"), csr.Issued)
	stops(t, p)
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
	kit.NoError(t, err)
	obj := kit.CreateRequest(t, c, kit.NodeRequest(t, "a", func(obj *kit.Request) {
		obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialID: {"X509SHA256=0a"}}
	}))
	kit.Reaches(t, obj, csr.Issued)
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	kit.NoError(t, err)
	cfg := rest.AnonymousClientConfig(kit.ControlPlane(t).Config)
	cfg.CertData, cfg.KeyData, cfg.QPS = obj.Status.Certificate, keyPEM, -1
	return holder{kit.ClientOf(t, cfg), obj, fmt.Sprintf("%x", sha256.Sum256(kit.Leaf(t, obj).Raw))}
}

// TestRenewalsAreBoundToTheirCertificates renews a certificate twice. The API server records in each request the
// certificate with which it was made. The audit log names it, explain shows it, and the block list blocks it,
// but not the certificates before and after it.
func TestRenewalsAreBoundToTheirCertificates(t *testing.T) {
	kit.Parallel(t)
	kit.Apply(t, "node-block-list")
	list, file := kit.BlockList(t, ""), filepath.Join(t.TempDir(), "audit.log")
	p := startWithBlockList(t, "--audit-log-path", file)
	first := renewedBy(t, kit.As(t, "joiner"))
	second := renewedBy(t, first)
	third := renewedBy(t, second)
	out, code := kit.RunPlugin(t, kit.ControlPlane(t).Config, "explain", second.obj.Name)
	kit.Says(t, out, code, 0, fmt.Sprintf("made with     %q", first.sha256), fmt.Sprintf("SHA-256       %q", second.sha256))

	block(t, list, "", second.sha256+" # stolen\n")
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
	for _, by := range []client.Client{first, third, kit.As(t, "joiner")} {
		renewedBy(t, by)
	}
	if states := csr.StateOf(kit.Reload(t, pending)) + csr.StateOf(kit.Reload(t, byHand)); states != csr.Pending+csr.Approved {
		t.Errorf("the blocked requests are %s", states)
	}
	issuedSoon(t, pending, func() { block(t, list, "", "") })
	kit.Reaches(t, byHand, csr.Issued)
	stops(t, p)

	// The records of each request name the certificate before it, by the SHA-256 that the record of that certificate has.
	var want []string
	for i, each := range []holder{first, second, third} {
		if got := each.obj.Spec.Extra[credentialID]; !slices.Equal(got, want) {
			t.Errorf("credential of certificate %d: %q, want %q", i, got, want)
		}
		events, issued := "", ""
		for _, record := range kit.ReadAudit(t, file) {
			if record.UID != each.obj.UID {
				continue
			}
			events += string(record.Event) + " "
			if got := record.Requester.CredentialIDs; !slices.Equal(got, want) {
				t.Errorf("record %s of certificate %d: %q, want %q", record.Event, i, got, want)
			}
			if record.Event == audit.Signed {
				issued = record.CertificateSHA256
			}
		}
		if !strings.Contains(events, string(audit.Decided)) || issued != each.sha256 {
			t.Errorf("records %sof certificate %d: %s", events, i, issued)
		}
		want = []string{"X509SHA256=" + issued}
	}
}
