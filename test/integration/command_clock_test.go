package integration

import (
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

// TestCommandsCountAgesByTheAPIServersTime uses an API server whose clock is two hours ahead of the commands'
// machine.
func TestCommandsCountAgesByTheAPIServersTime(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	manager := startManager(t, serviceAccountConfig(t))
	manager.answers(t, manager.probes, "/readyz", http.StatusOK)
	obj := createRequest(t, admin(t), nodeRequest(t, "aged"))
	proxy := throughFaults(t, controlPlane(t).Config, faults.Rule{Do: faults.ShiftDate(2 * time.Hour)})
	out, code := runPlugin(t, proxy.Config, "explain", obj.Name)
	says(t, out, code, 0)
	for _, part := range []string{`created +\S+ \((120m|119m|2h)\S* ago\)`, `renewed (120m|119m|2h)\S* ago`} {
		if !regexp.MustCompile(part).MatchString(out) {
			t.Errorf("no %s in:\n%s", part, out)
		}
	}
}
