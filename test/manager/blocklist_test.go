package manager

import (
	"crypto/sha256"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
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
	held, byHand := joins(t, a), kit.Approve(t, joins(t, b))
	byCertificate := kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), kit.ClientRequest(t, "a-user"))) // the administrator has a client certificate
	for _, obj := range []*kit.Request{held, byHand, byCertificate} {
		kit.HasEvent(t, obj, "InventoryUnavailable", "ConfigMap "+kit.BlockListName+": it can't be read", "is forbidden")
	}
	byToken := kit.Approve(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.ClientRequest(t, "a-user"))) // and not for a node
	kit.Reaches(t, byToken, csr.Issued)
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
	approved := kit.Approve(t, joins(t, a))
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
	kit.Reaches(t, kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), kit.ClientRequest(t, a))), csr.Issued)

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
	kit.NoError(t, p.Stop())
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
	obj := kit.CreateRequest(t, c, kit.NodeRequest(t, "a", func(obj *kit.Request) {
		subject := pkix.Name{CommonName: "system:node:a", Organization: []string{csr.NodeGroup}}
		obj.Spec.Request = kit.Must(certutil.MakeCSR(key, &subject, nil, nil))(t)
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialID: {"X509SHA256=0a"}}
	}))
	kit.Reaches(t, obj, csr.Issued)
	cfg := rest.AnonymousClientConfig(kit.ControlPlane(t).Config)
	cfg.CertData, cfg.KeyData, cfg.QPS = obj.Status.Certificate, kit.Must(keyutil.MarshalPrivateKeyToPEM(key))(t), -1
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
	plugin(t, 0, "explain "+second.obj.Name, fmt.Sprintf("made with     %q", first.sha256), fmt.Sprintf("SHA-256       %q", second.sha256))

	block(t, list, "", second.sha256+" # stolen\n")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_certificates 1", "csr_block_list_nodes 0", "csr_block_list_problems 0")
	pending := kit.CreateRequest(t, second, kit.NodeRequest(t, "a"))
	byHand := kit.Approve(t, kit.CreateRequest(t, second, kit.NodeRequest(t, "a")))
	for controller, obj := range map[string]*kit.Request{"csr-approver": pending, "csr-signer": byHand} {
		kit.HasEventBy(t, obj, controller, "CertificateBlocked")
		kit.HasEvent(t, obj, "CertificateBlocked", "client certificate "+second.sha256+" is on the block list, ConfigMap "+kit.BlockListName)
	}
	plugin(t, 0, "explain "+pending.Name, "csr-approver CertificateBlocked", "Nothing, or remove its SHA-256 from the list.")
	plugin(t, 1, "approve "+pending.Name+" --yes", "not approved: CertificateBlocked: the block list")
	for _, by := range []client.Client{first, third, kit.As(t, "joiner")} {
		renewedBy(t, by)
	}
	kit.IsIn(t, pending, csr.Pending)
	kit.IsIn(t, byHand, csr.Approved)
	issuedSoon(t, pending, func() { block(t, list, "", "") })
	kit.Reaches(t, byHand, csr.Issued)
	kit.NoError(t, p.Stop())

	// The records of each request name the certificate before it, by the SHA-256 that the record of that certificate has.
	var want []string
	for i, each := range []holder{first, second, third} {
		kit.Equal(t, fmt.Sprint("credential of certificate ", i), each.obj.Spec.Extra[credentialID], want)
		events, issued := "", ""
		for _, record := range kit.ReadAudit(t, file) {
			if record.UID != each.obj.UID {
				continue
			}
			events += string(record.Event) + " "
			kit.Equal(t, fmt.Sprintf("record %s of certificate %d", record.Event, i), record.Requester.CredentialIDs, want)
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
