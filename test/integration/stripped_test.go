package integration

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestWritesKeepTheMetadata checks that approval, certificate and failure erase nothing of a request, although the
// cache strips requests. A large request is read from the API server before each write. In one manager with all controllers,
// the approver hands a small request to the signer.
func TestWritesKeepTheMetadata(t *testing.T) {
	parallel(t)
	together := func() (stop func()) { return startLoopAs(t, managerConfig(t), csrenv.Options{}) }
	apart := func() (stop func()) { return startLoop(t, csrenv.Options{}) }
	for name, test := range map[string]struct {
		size  int
		start func() (stop func())
	}{
		"kept-together": {10, together}, "kept-large-together": {20 << 10, together},
		"kept": {10, apart}, "kept-large": {20 << 10, apart},
	} {
		obj := createRequest(t, admin(t), nodeRequest(t, name, func(obj *request) {
			obj.Annotations = map[string]string{"example.com/note": strings.Repeat("x", test.size)}
			obj.Labels = map[string]string{"example.com/label": "y"}
			obj.Finalizers = []string{"example.com/finalizer"}
			obj.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "u"}}
		}))
		t.Cleanup(func() {
			free := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			if err := admin(t).Patch(context.Background(), obj, free); err != nil {
				t.Error(err)
			}
		})
		before := obj.DeepCopy()
		stop := test.start()
		issued := reaches(t, obj, csr.Issued)
		issued.ManagedFields, issued.ResourceVersion = before.ManagedFields, before.ResourceVersion
		if diff := cmp.Diff(before.ObjectMeta, issued.ObjectMeta); diff != "" {
			t.Errorf("%s: metadata (-created +issued):\n%s", name, diff)
		}
		if diff := cmp.Diff(before.Spec, issued.Spec); diff != "" {
			t.Errorf("%s: spec (-created +issued):\n%s", name, diff)
		}
		stop()
	}
}
