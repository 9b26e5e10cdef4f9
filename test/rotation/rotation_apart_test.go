//go:build nightly

package rotation

import (
	"net"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestUnreachableAPIServersDelayNoOtherAuthority has an authority whose API servers accept connections and never
// answer, so that each round takes ten seconds. Another authority settles meanwhile, although a break of three
// seconds would restart its proof.
func TestUnreachableAPIServersDelayNoOtherAuthority(t *testing.T) {
	kit.Parallel(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and no process reads
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	r := startRotating(t)
	r.run(t, controllers.Options{Rotation: &rotation.Reconciler{}})
	r.bring(t, "silent-ca", kit.NewCA(t))
	r.authority(t, "silent", "silent-ca", func(spec *v1alpha1.SigningAuthoritySpec) {
		spec.Verification.APIServers = []string{silent.Addr().String()}
	})
	r.reaches(t, "silent", v1alpha1.Preparing, func(obj *v1alpha1.SigningAuthority) bool { return len(obj.Status.APIServers) == 1 })

	r.authority(t, "cluster", "signing-ca", nil)
	r.reaches(t, "cluster", v1alpha1.Completed, nil)
	r.feed(t)
	r.ask(t, "cluster", v1alpha1.OperationStart)
	r.reaches(t, "cluster", v1alpha1.Prepared, nil)
	r.reaches(t, "silent", v1alpha1.Preparing, nil)
}
