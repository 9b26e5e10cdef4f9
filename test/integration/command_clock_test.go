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

	kubeconfig, err := controlPlane(t).WriteKubeconfig("commands-clock", proxy.Config)
	if err != nil {
		t.Fatal(err)
	}
	explained, err := runExplain(t, "", "--kubeconfig", kubeconfig, "--signing-secret", systemNamespace+"/csr-signer", obj.Name)
	if err != nil || !regexp.MustCompile(`created +(2h|1h59m)\S* ago`).MatchString(explained) {
		t.Errorf("explain, error %v:\n%s", err, explained)
	}
	checked, _ := runCheck(t, proxy.Config, "--signing-secret", systemNamespace+"/csr-signer")
	for _, part := range []string{`renewed (2h|1h59m)\S* ago`, "the clocks of this machine and of the API server differ by (2h|1h59m)"} {
		if !regexp.MustCompile(part).MatchString(checked) {
			t.Errorf("no %s in:\n%s", part, checked)
		}
	}
}
