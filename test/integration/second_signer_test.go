package integration

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestSecondSignerIsReported stores certificates by hand and with the real kube-controller-manager, beside a manager
// that signs for the same signers under the shipped roles.
func TestSecondSignerIsReported(t *testing.T) {
	parallel(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	blockList(t, "second-theirs\n") // the manager signs nothing for it
	p := startManager(t, roleConfig(t, "signer", "node-block-list"), "--leader-elect=false", "--controllers=signer", "--node-block-list="+blockListName)
	w := &takeover{Cluster: controlPlane(t), admin: admin(t)}

	own := approvedClient(t, "second-own")
	w.reaches(t, own, csr.Issued)
	if by := certificateManager(own); by != signer.FieldManager {
		t.Errorf("the manager stores certificates as %q", by)
	}

	manual := createRequest(t, admin(t), nodeRequest(t, "second-manual"))
	manual.Status.Certificate = own.Status.Certificate
	if err := admin(t).Status().Update(t.Context(), manual, client.FieldOwner("kubectl-edit")); err != nil {
		t.Fatal(err)
	}
	secondSignerEvent(t, manual, `field manager "kubectl-edit" has stored the certificate of this request`)

	theirs := w.start(t, "second-kcm", os.Getenv("KUBE_CONTROLLER_MANAGER"), "--controllers=csrsigning", "--secure-port=0", "--use-service-account-credentials=false",
		"--cluster-signing-cert-file", w.caFile(t, "second-ca.crt", controlPlane(t).CA.CertPEM), "--cluster-signing-key-file", w.caFile(t, "second-ca.key", controlPlane(t).CA.KeyPEM))
	t.Cleanup(func() {
		for _, name := range []string{"second-ca.crt", "second-ca.key"} {
			_ = os.Remove(filepath.Join(controlPlane(t).Dir, name))
		}
	})
	approved := createRequest(t, admin(t), nodeRequest(t, "second-theirs"))
	approve(t, approved)
	w.reaches(t, approved, csr.Issued)
	end(t, theirs)
	secondSignerEvent(t, approved, `field manager "kube-controller-manager" has stored the certificate of this request`)

	p.answers(t, p.metrics, "/metrics", http.StatusOK,
		fmt.Sprintf("csr_signer_foreign_certificates_total{signer=%q} 2\n", approved.Spec.SignerName),
		fmt.Sprintf("csr_signer_foreign_certificates_total{signer=%q} 0\n", own.Spec.SignerName))
	for _, event := range eventsOf(t.Context(), t, own) {
		t.Errorf("an Event about its own certificate: %s %s", event.Reason, event.Note)
	}
}

// certificateManager returns the field manager of the status of obj.
func certificateManager(obj *request) string {
	for _, entry := range obj.ManagedFields {
		if entry.Subresource == "status" {
			return entry.Manager
		}
	}
	return ""
}

func secondSignerEvent(t *testing.T, obj *request, want string) {
	t.Helper()
	eventually(t, "the Event about "+obj.Name, func(ctx context.Context) error {
		var found []eventsv1.Event
		for _, event := range eventsOf(ctx, t, obj) {
			if event.Reason == "SecondSigner" {
				found = append(found, event)
			}
		}
		if len(found) != 1 || found[0].Type != "Warning" || !strings.HasPrefix(found[0].Note, want) {
			return fmt.Errorf("Events %+v, want one that begins with %q", found, want)
		}
		return nil
	})
}
