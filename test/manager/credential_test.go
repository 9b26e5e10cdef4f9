package manager

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

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
		obj.Spec.Request = keyPayload(t, key)
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialID: {"X509SHA256=0a"}}
	}))
	kit.Reaches(t, obj, csr.Issued)
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(kit.ControlPlane(t).Config)
	cfg.CertData, cfg.KeyData, cfg.QPS = obj.Status.Certificate, keyPEM, -1
	renewed, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme, Mapper: kit.Admin(t).RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return holder{renewed, obj, fmt.Sprintf("%x", sha256.Sum256(kit.Leaf(t, obj).Raw))}
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
