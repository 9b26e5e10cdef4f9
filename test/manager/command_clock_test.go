package manager

import (
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestCommandsCountAgesByTheAPIServersTime uses an API server whose clock is two hours ahead of the commands'
// machine.
func TestCommandsCountAgesByTheAPIServersTime(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	manager := kit.StartManager(t, kit.ServiceAccountConfig(t))
	manager.Answers(t, manager.Probes, "/readyz", http.StatusOK)
	obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "aged"))
	proxy := kit.ThroughFaults(t, kit.ControlPlane(t).Config, faults.Rule{Do: faults.ShiftDate(2 * time.Hour)})
	out, code := kit.RunPlugin(t, proxy.Config, "explain", obj.Name)
	kit.Says(t, out, code, 0)
	for _, part := range []string{`created +\S+ \((120m|119m|2h)\S* ago\)`, `renewed (120m|119m|2h)\S* ago`} {
		if !regexp.MustCompile(part).MatchString(out) {
			t.Errorf("no %s in:\n%s", part, out)
		}
	}
}
