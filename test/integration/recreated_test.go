package integration

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestApprovalDoesNotPassToARequestOfTheSameName replaces a request that may be approved by a stranger's request of
// the same name, between the approver's read and its write. The approval must not reach a request that was not
// judged.
func TestApprovalDoesNotPassToARequestOfTheSameName(t *testing.T) {
	parallel(t)
	grant(t, "stranger", mayCreate)
	named := func(obj *request) { obj.Name, obj.GenerateName = "swapped", "" }
	judged := createRequest(t, admin(t), nodeRequest(t, "mine", named))
	stale := judged.DeepCopy()
	if err := admin(t).Delete(t.Context(), judged); err != nil {
		t.Fatal(err)
	}
	swapped := createRequest(t, as(t, "stranger"), nodeRequest(t, "not-mine", named))
	r, _ := newApprover(t, clocktesting.NewFakeClock(time.Now()))
	r.Client = staleClient{Client: admin(t), obj: stale}
	reconcileOnce(t, r, stale)
	if got := reload(t, swapped); csr.StateOf(got) != csr.Pending || got.UID == stale.UID {
		t.Errorf("the stranger's request is %s, want Pending", csr.StateOf(got))
	}
}
