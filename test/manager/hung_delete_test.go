//go:build nightly

package manager

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestHungDeleteHoldsUpNoOther has one hanging delete of the cleaner: the others continue, and it is retried.
func TestHungDeleteHoldsUpNoOther(t *testing.T) {
	kit.Alone(t)
	proxy := kit.ThroughFaults(t, kit.RoleConfig(t, "cleaner"),
		faults.Rule{Verbs: []string{"delete"}, Resources: []string{"certificatesigningrequests"}, Times: 1, Do: faults.Hang()})
	var due []*kit.Request
	for i := range 20 {
		obj := kit.NodeRequest(t, fmt.Sprint("due-", i))
		obj.Spec.SignerName = "example.com/foreign"
		due = append(due, kit.CreateRequest(t, kit.Admin(t), obj))
	}
	config := kit.Configure(t, `controllers: [csrcleaner]
cleaning: {signers: [{name: example.com/foreign, retention: {pending: 2s}}]}
`)
	kit.StartManager(t, proxy.Config, config, "--leader-elect=false")
	gone := func(objs []*kit.Request) (left int) {
		for _, obj := range objs {
			if err := kit.Admin(t).Get(t.Context(), client.ObjectKeyFromObject(obj), &kit.Request{}); !apierrors.IsNotFound(err) {
				left++
			}
		}
		return left
	}
	kit.Eventually(t, "the others are deleted", func(context.Context) error {
		if left := gone(due); left > 1 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
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
	if want := len(due) - 1; hung == "" || len(others) != want {
		t.Errorf("%d others were deleted while the delete of %q hung, want %d", len(others), hung, want)
	}
	kit.Within(t, 90*time.Second, "the last one is deleted", func(context.Context) error {
		if left := gone(due); left > 0 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
}
