package manager

import (
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestRunbookCommands runs the commands of the runbooks that an administrator runs on a workstation. No result may be
// unknown because of missing rights.
func TestRunbookCommands(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.Grant(t, "joiner", kit.MayCreate)
	kit.StartManager(t, kit.ServiceAccountConfig(t))
	obj := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "check-runbook"))
	kit.HasEvent(t, obj, "NotAuthorized")
	for command, parts := range map[string][]string{
		"check -v":                     {"kubelet-rights", "manager-running", "serving-asked"},
		"explain --node check-runbook": {obj.Name, "csr-approver NotAuthorized", "Next step"},
		"explain " + obj.Name:          {"csr-approver NotAuthorized", "held by"},
		"pending":                      {obj.Name, "NotAuthorized"},
	} {
		output, _ := kit.RunPlugin(t, kit.ControlPlane(t).Config, strings.Fields(command)...) // the exit code shows the findings
		for _, part := range parts {
			if !strings.Contains(output, part) {
				t.Errorf("%s: %q is not in:\n%s", command, part, output)
			}
		}
		if strings.Contains(output, "unknown: ") {
			t.Errorf("%s: something is unknown:\n%s", command, output)
		}
	}
}
