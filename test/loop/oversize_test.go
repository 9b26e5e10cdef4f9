package loop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestOversizeKeyIsNotSigned uses an RSA key of 16,384 bits, which the API server accepts.
func TestOversizeKeyIsNotSigned(t *testing.T) {
	kit.Parallel(t)
	kit.StartLoop(t, csrenv.Options{})
	huge, err := os.ReadFile("../../controllers/signer/testdata/rsa-16384.pem")
	if err != nil {
		t.Fatal(err)
	}
	ask := func() *kit.Request {
		return kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "a", func(obj *kit.Request) {
			obj.Spec.SignerName, obj.Spec.Request = certificatesv1.KubeAPIServerClientKubeletSignerName, huge
		}))
	}
	const message = "RSA keys of 16384 bits are not permitted; use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519"
	pending := ask()
	kit.HasEvent(t, pending, "KeyNotPermitted", message)
	kit.Approve(t, kit.Reload(t, pending))
	if failed := kit.Reaches(t, pending, csr.Failed).Status.Conditions[1]; failed.Reason != "KeyNotPermitted" || failed.Message != message {
		t.Errorf("Failed with %s: %s", failed.Reason, failed.Message)
	}
	kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "good")), csr.Issued)
}

// TestWhatEtcdCannotStoreIsFailed makes a request so large, by its labels, that etcd has room for a Failed condition
// but not for a certificate. The audit log says that the certificate was discarded. A slightly smaller request gets its
// certificate.
func TestWhatEtcdCannotStoreIsFailed(t *testing.T) {
	kit.Parallel(t)
	records := filepath.Join(t.TempDir(), "audit.log")
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) { o.Audit = openAudit(t, records) }}, "signer", "cleaner")
	const limit = 1536 << 10 // etcd's --max-request-bytes
	obj := storeLarge(t, limit-1200)
	kit.Reaches(t, obj, csr.Failed)
	last := obj.Status.Conditions[len(obj.Status.Conditions)-1]
	if last.Reason != "RequestTooLarge" || last.Status != corev1.ConditionTrue || !strings.Contains(last.Message, "does not fit into an object") {
		t.Errorf("%s: %s", last.Reason, last.Message)
	}
	kit.Eventually(t, "the records are complete", func(context.Context) error {
		var said []audit.Event
		for _, record := range kit.ReadAudit(t, records) {
			if record.UID == obj.UID {
				said = append(said, record.Event)
			}
		}
		if want := []audit.Event{audit.Signed, audit.Discarded, audit.NotSigned}; !slices.Equal(said, want) {
			return fmt.Errorf("records %v, want %v", said, want)
		}
		return nil
	})
	kit.Reaches(t, storeLarge(t, limit-5<<10), csr.Issued)
}

// storeLarge stores an approved request of about size bytes, most of them labels, because annotations may not be so
// long. The API server drops its managed fields, because they do not fit.
func storeLarge(t *testing.T, size int) *kit.Request {
	t.Helper()
	obj := kit.NodeRequest(t, "large")
	obj.Labels = map[string]string{}
	prefix := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60)
	for left := size - obj.Size(); left > 0; left = size - obj.Size() {
		for range 1 + left/300 { // a label takes less than 300 bytes
			obj.Labels[fmt.Sprintf("%s/a%05d", prefix, len(obj.Labels))] = ""
		}
	}
	kit.Create(t, kit.Admin(t), obj)
	kit.Approve(t, obj)
	return obj
}
