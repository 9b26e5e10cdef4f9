package loop

import (
	"context"
	"errors"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestLoopsHaveOneRoleEach takes the signer's role away. The approver goes on, and does not sign.
func TestLoopsHaveOneRoleEach(t *testing.T) {
	kit.Alone(t)
	kit.StartLoop(t, csrenv.Options{})
	kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "before")), csr.Issued)
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "csr-signer-for-" + kit.SignerAccount}}
	if err := kit.Admin(t).Get(t.Context(), client.ObjectKeyFromObject(binding), binding); err != nil {
		t.Fatal(err)
	}
	if err := kit.Admin(t).Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	refused := kit.Counted(t, "csr_signer_errors_total", nil)
	var waiting *kit.Request
	kit.Eventually(t, "the signer is refused", func(context.Context) error {
		waiting = kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "waits")), csr.Approved)
		if kit.Counted(t, "csr_signer_errors_total", nil) == refused {
			return errors.New("it is not")
		}
		return nil
	})
	if state := csr.StateOf(kit.Reload(t, waiting)); state != csr.Approved {
		t.Errorf("without the signer's role, a request is %s", state)
	}
	binding.ResourceVersion, binding.UID = "", ""
	kit.Create(t, kit.Admin(t), binding)
	kit.Reaches(t, waiting, csr.Issued)
}
