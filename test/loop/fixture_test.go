// Package loop tests the controllers in the process of the test, on a real control plane.
package loop

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

func TestMain(m *testing.M) { kit.Main(m, 4) }

// signingFrom configures every signer to sign with the CA from source.
func signingFrom(source keypair.Source) func(*controllers.Options) {
	return func(o *controllers.Options) {
		pair := keypair.New(source)
		for name, one := range o.Signer.Signers {
			one.KeyPair = pair
			o.Signer.Signers[name] = one
		}
	}
}

func openAudit(t *testing.T, file string) *audit.Log {
	t.Helper()
	return kit.Must(audit.Open(audit.Options{Path: file, MaxSize: 100}))(t)
}

// signs checks that a new request of a node gets a certificate of a CA.
func signs(t *testing.T, by *csrenv.CA) {
	t.Helper()
	kit.IssuedBy(t, kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "any")), csr.Issued), by)
}

// failsAs waits until obj has failed for reason.
func failsAs(t *testing.T, obj *kit.Request, reason, part string) {
	t.Helper()
	failed := csr.Condition(kit.Reaches(t, obj, csr.Failed), certificatesv1.CertificateFailed)
	if failed.Reason != reason || !strings.Contains(failed.Message, part) {
		t.Errorf("%s failed with %s: %s, want %s with %q", obj.Name, failed.Reason, failed.Message, reason, part)
	}
}
