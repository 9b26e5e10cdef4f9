package integration

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
