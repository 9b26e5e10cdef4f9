package loop

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestApprovalDoesNotPassToARequestOfTheSameName replaces a request that may be approved by a stranger's request of
// the same name, between the approver's read and its write. The approval must not reach a request that was not
// judged.
func TestApprovalDoesNotPassToARequestOfTheSameName(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	named := func(obj *kit.Request) { obj.Name, obj.GenerateName = "swapped", "" }
	judged := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "mine", named))
	stale := judged.DeepCopy()
	if err := kit.Admin(t).Delete(t.Context(), judged); err != nil {
		t.Fatal(err)
	}
	swapped := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "not-mine", named))
	r, _ := newApprover(t, clocktesting.NewFakeClock(time.Now()))
	r.Client = kit.StaleClient{Client: kit.Admin(t), Obj: stale}
	reconcileOnce(t, r, stale)
	if got := kit.Reload(t, swapped); csr.StateOf(got) != csr.Pending || got.UID == stale.UID {
		t.Errorf("the stranger's request is %s, want Pending", csr.StateOf(got))
	}
}
