package integration

import (
	"context"
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/requestcache"
)

// TestRequestThatIsBeingDeletedIsLeftAlone has a requester that keeps a request with a finalizer. After its deletion,
// earlier versions judged and approved it as long as the finalizer was there.
func TestRequestThatIsBeingDeletedIsLeftAlone(t *testing.T) {
	parallel(t)
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	eventuallyAllowed(t, "joiner", true)
	obj := createRequest(t, as(t, "joiner"), nodeRequest(t, "kept", func(obj *request) { obj.Finalizers = []string{"example.com/kept"} }))
	t.Cleanup(func() {
		if err := admin(t).Patch(context.Background(), obj, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
			t.Error(err)
		}
	})
	if err := admin(t).Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	startLoop(t, csrenv.Options{})
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "later")), csr.Issued)
	if reload(t, obj); csr.StateOf(obj) != csr.Pending || obj.DeletionTimestamp == nil {
		t.Errorf("it is %s: %+v", csr.StateOf(obj), obj.Status.Conditions)
	}
}

// TestDeletedRequestTakesNoRoom deletes a request that waits. The manager then holds nothing of it.
func TestDeletedRequestTakesNoRoom(t *testing.T) {
	parallel(t)
	grant(t, "joiner", mayCreate)
	held := &requestcache.Cache{}
	mgr := newManager(t, roleConfig(t, "approver"), manager.Options{Cache: held.CacheOptions()})
	options := controllers.Options{Requests: held, Approver: &approver.Reconciler{Rules: []approver.Rule{approver.NodeClient()}}}
	if err := options.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	follow(t, mgr.Start)
	holds := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d requests are held", want), func(context.Context) error {
			if got := held.Parsed(); got != want {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
	}
	obj := createRequest(t, as(t, "joiner"), nodeRequest(t, "waits"))
	holds(1)
	if err := admin(t).Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	holds(0)
}
