//go:build nightly

package manager

import (
	"context"
	"fmt"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestAnswersAfter25Seconds delays every call almost as long as an admission webhook may.
func TestAnswersAfter25Seconds(t *testing.T) {
	kit.Parallel(t)
	joinSlowly(t, 10, 25*time.Second, 115*time.Second)
}

// TestHungDeleteHoldsUpNoOther has one hanging delete of the cleaner: the others continue, and it is retried.
func TestHungDeleteHoldsUpNoOther(t *testing.T) {
	kit.Alone(t)
	proxy := kit.ThroughFaults(t, kit.RoleConfig(t, "cleaner"),
		faults.Rule{Verbs: []string{"delete"}, Resources: []string{"certificatesigningrequests"}, Times: 1, Do: faults.Hang()})
	const due = 20
	for range due {
		kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "due", signerName("example.com/foreign")))
	}
	config := kit.Configure(t, `controllers: [csrcleaner]
cleaning: {signers: [{name: example.com/foreign, retention: {pending: 2s}}]}
`)
	kit.StartManager(t, proxy.Config, config, "--leader-elect=false")
	atMost := func(most int) {
		t.Helper()
		kit.Within(t, 90*time.Second, "due requests are deleted", func(ctx context.Context) error {
			left := &certificatesv1.CertificateSigningRequestList{}
			if err := kit.Admin(t).List(ctx, left); err != nil || len(left.Items) > most {
				return fmt.Errorf("%d are left, error %w", len(left.Items), err)
			}
			return nil
		})
	}
	atMost(1)
	// The hanging delete ends after 45 seconds, and is then repeated. All others come before that.
	var hung string
	others := map[string]bool{}
	for _, call := range proxy.Calls() {
		if call.Verb != "delete" {
			continue
		}
		if call.Fault == "Hang" {
			hung = call.Name
		} else if call.Name == hung {
			break
		} else {
			others[call.Name] = true
		}
	}
	if want := due - 1; hung == "" || len(others) != want {
		t.Errorf("%d others were deleted while the delete of %q hung, want %d", len(others), hung, want)
	}
	atMost(0)
}
