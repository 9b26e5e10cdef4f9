//go:build nightly

package rotation

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestOlderClusterTrustBundles uses an API server that serves only an older version, and then one that is down.
func TestOlderClusterTrustBundles(t *testing.T) {
	kit.Parallel(t)
	version := map[string]string{"v1": "v1beta1", "": "v1alpha1"}[bundlesByDefault(t)] // v1alpha1 was removed in 1.37
	kit.WithAPIServer(t, nil, func(_ string, args *envtest.Arguments) {
		args.Set("feature-gates", "ClusterTrustBundle=true,ClusterTrustBundleProjection=true")
		const group = "certificates.k8s.io/"
		args.Set("runtime-config", group+"v1=false,"+group+"v1beta1=false,"+group+"v1alpha1=false,"+group+version+"=true")
	})
	p := publisher(t, kit.ControlPlane(t).Config)
	wanted := trust.Wanted{Bundle: kit.NewCA(t).CertPEM, Suffix: "csr-signer", Signers: []string{userSigner}}
	wantProblems(t, "published", publish(t, p, wanted))
	spoil(t, wantBundle(t, version, trust.BundleName(userSigner, "csr-signer"), userSigner, wanted.Bundle))
	wantProblems(t, "spoilt", unpublished(t, p, wanted), "is not up to date")
	wantProblems(t, "put right", publish(t, p, wanted))
	kit.NoError(t, kit.ControlPlane(t).Env.ControlPlane.GetAPIServer().Stop())
	wantProblems(t, "nobody answers", unpublished(t, p, wanted), "ClusterTrustBundles can't be discovered")
}

// TestRootAboveIsNamed checks that the completion is refused while an API server trusts a CA above the retiring one,
// because the completion would never end.
func TestRootAboveIsNamed(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	root := kit.IntermediateOf(t, kit.NewCA(t)) // it may have CAs below it
	first, second := kit.IntermediateOf(t, root), kit.IntermediateOf(t, root)
	kit.NoError(t, r.trust(string(root.CertPEM)))
	const name = "below"
	r.run(t, r.signing(t, name, 10*time.Minute))
	r.bring(t, name, first)
	r.authority(t, name, name, published(name))
	r.reaches(t, name, v1alpha1.Completed, nil)
	r.does(t, name, v1alpha1.OperationAttest)
	before := r.user(t, "before", r.get(t, name).Status.Signing)
	r.edit(t, name, second.CertPEM, second.KeyPEM)
	remove := fmt.Sprintf("remove %q from", kit.Certificate(t, root).Subject)
	named := func(s *v1alpha1.SigningAuthorityStatus) bool {
		return strings.Contains(strings.Join(s.WaitingFor, "\n"), remove)
	}
	r.reaches(t, name, v1alpha1.Prepared, named)
	r.does(t, name, v1alpha1.OperationAccept)
	r.does(t, name, v1alpha1.OperationComplete)
	r.tells(t, name, "RotationRefused", remove)
	r.isTakenFor(t, before, "before")

	// Its owner removes it in both places.
	r.feed(t)
	r.reaches(t, name, v1alpha1.Prepared, named) // it stays in the ConfigMap
	kit.Eventually(t, "the API server trusts the bundle, and not the root", func(context.Context) error {
		return publisher(t, r.Config).Prune(t.Context(), kit.Certificate(t, root))
	})
	r.completes(t, name)
	r.reaches(t, name, v1alpha1.Completed, func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Retiring == nil })
	r.isTakenFor(t, before, "")
}
