package manager

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestSecondSignerIsReported stores a certificate of another CA while the manager's own write for the same request is on its
// way. A certificate of the manager's own CA, which an earlier leader may store, is not reported.
func TestSecondSignerIsReported(t *testing.T) {
	kit.Parallel(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	proxy := kit.ThroughFaults(t, kit.RoleConfig(t, "signer"))
	records := filepath.Join(t.TempDir(), "audit.log")
	p := kit.StartManager(t, proxy.Config, "--leader-elect=false", "--controllers=signer", "--audit-log-path", records)
	own := kit.Reaches(t, kit.ApprovedClient(t, "second-own"), csr.Issued)
	if by := certificateManager(own); by != signer.FieldManager {
		t.Errorf("the manager stores certificates as %q", by)
	}

	other := kit.IssueCA(t, "other", kit.NewKey(t), nil, time.Hour)
	outrun := func(user string, certificate []byte) *kit.Request {
		obj := kit.CreateRequest(t, kit.Admin(t), kit.ClientRequest(t, user))
		// Use ends the watches. So the manager may repeat a write for an earlier request, which must not use up the rule.
		proxy.Use(faults.Rule{Path: regexp.MustCompile("/" + obj.Name + "/status$"), Times: 1, Do: faults.Delay(3 * time.Second)})
		kit.Approve(t, obj)
		kit.Eventually(t, "the manager writes", func(context.Context) error {
			if proxy.Applied()[0] == 0 {
				return errors.New("it does not")
			}
			return nil
		})
		obj.Status.Certificate = certificate
		if err := kit.Admin(t).Status().Update(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, "the manager's certificate is discarded", func(context.Context) error {
			if !slices.ContainsFunc(kit.ReadAudit(t, records), func(record audit.Record) bool {
				return record.UID == obj.UID && record.Event == audit.Discarded
			}) {
				return errors.New("it is not")
			}
			return nil
		})
		return obj
	}
	replica := outrun("second-replica", own.Status.Certificate)
	theirs := outrun("second-theirs", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Leaf(t, "theirs").Certificate[0]}))
	kit.HasEvent(t, theirs, "SecondSigner", fmt.Sprintf("another program has stored the certificate of this request, issued by the CA %+q",
		other.Cert.Subject.String()), "this manager signs for "+theirs.Spec.SignerName+" too")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, fmt.Sprintf("csr_signer_foreign_certificates_total{signer=%q} 1\n", own.Spec.SignerName))
	for _, obj := range []*kit.Request{own, replica} {
		for _, event := range kit.EventsOf(t.Context(), t, obj) {
			t.Errorf("an Event about a certificate of its own CA: %s %s", event.Reason, event.Note)
		}
	}
}

// certificateManager returns the field manager of the status of obj.
func certificateManager(obj *kit.Request) string {
	for _, entry := range obj.ManagedFields {
		if entry.Subresource == "status" {
			return entry.Manager
		}
	}
	return ""
}
