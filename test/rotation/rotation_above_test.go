//go:build nightly

package rotation

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestRootAboveIsNamed checks that the completion is refused while an API server trusts a CA above the retiring one,
// because the completion would never end.
func TestRootAboveIsNamed(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	root := kit.IntermediateOf(t, kit.NewCA(t)) // it may have CAs below it
	first, second := kit.IntermediateOf(t, root), kit.IntermediateOf(t, root)
	if err := r.trust(root.CertPEM); err != nil {
		t.Fatal(err)
	}
	const name = "below"
	r.run(t, r.everything(t, 10*time.Minute, clientSigners(name)))
	r.bring(t, name, first)
	r.authority(t, name, name, nil)
	r.reaches(t, name, v1alpha1.Completed, nil)
	r.does(t, name, v1alpha1.OperationAttest)
	before := r.user(t, "before", r.get(t, name).Status.Signing)
	r.edit(t, name, second.CertPEM, second.KeyPEM)
	subject := fmt.Sprintf("%q", kit.Certificate(t, root).Subject)
	r.waitsFor(t, name, v1alpha1.Prepared, "remove "+subject+" from")
	r.does(t, name, v1alpha1.OperationAccept)
	r.does(t, name, v1alpha1.OperationComplete)
	r.tells(t, name, "RotationRefused", "remove "+subject+" from")
	r.isTakenFor(t, before, "before")

	// Its owner removes it in both places.
	r.feed(t)
	r.waitsFor(t, name, v1alpha1.Prepared, "remove "+subject+" from") // it stays in the ConfigMap
	kit.Eventually(t, "the API server trusts the bundle, and not the root", func(context.Context) error {
		return publisher(t, r.Config).Prune(t.Context(), kit.Certificate(t, root))
	})
	r.completes(t, name)
	r.reaches(t, name, v1alpha1.Completed, func(obj *v1alpha1.SigningAuthority) bool { return obj.Status.Retiring == nil })
	r.isTakenFor(t, before, "")
}
