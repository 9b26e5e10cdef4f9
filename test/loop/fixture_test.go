// Package loop tests the controllers in the process of the test, on a real control plane.
package loop

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

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

// caSecret creates a Secret with a CA, and lets the signer read it.
func caSecret(t *testing.T, name string, holds *csrenv.CA) *corev1.Secret {
	t.Helper()
	secret := kit.SigningSecret(holds.CertPEM, holds.KeyPEM)
	secret.Name = name
	kit.Create(t, kit.Admin(t), secret)
	kit.ApplyAll(t, kit.RolesForSecret(t, name, kit.SignerAccount))
	return secret
}

// reject is how often the loops of this process have rejected a CA.
func rejected(t *testing.T) int {
	t.Helper()
	return kit.Counted(t, "csr_signer_ca_reloads_total", map[string]string{"result": "rejected"})
}

func openAudit(t *testing.T, file string) *audit.Log {
	t.Helper()
	opened, err := audit.Open(audit.Options{Path: file, MaxSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// recordedOf returns the events in the records about obj.
func recordedOf(t *testing.T, file string, obj *kit.Request) (all []audit.Event) {
	t.Helper()
	for _, record := range kit.ReadAudit(t, file) {
		if record.UID == obj.UID {
			all = append(all, record.Event)
		}
	}
	return all
}

// signs checks that a new request of a node gets a certificate of a CA.
func signs(t *testing.T, by *csrenv.CA) {
	t.Helper()
	kit.IssuedBy(t, kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "any")), csr.Issued), by)
}

// failsAs waits until obj has failed for reason.
func failsAs(t *testing.T, obj *kit.Request, reason, part string) {
	t.Helper()
	kit.Reaches(t, obj, csr.Failed)
	for _, condition := range obj.Status.Conditions {
		if condition.Type == certificatesv1.CertificateFailed && (condition.Reason != reason || !strings.Contains(condition.Message, part)) {
			t.Errorf("%s failed with %s: %s, want %s with %q", obj.Name, condition.Reason, condition.Message, reason, part)
		}
	}
}
