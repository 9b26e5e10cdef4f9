package integration

import (
	"strings"
	"testing"
)

// TestRunbookCommands runs the commands of the runbooks that an administrator runs on a workstation. No result may be
// unknown because of missing rights.
func TestRunbookCommands(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	startManager(t, serviceAccountConfig(t))
	obj := createRequest(t, as(t, "joiner"), nodeRequest(t, "check-runbook"))
	hasEvent(t, obj, "NotAuthorized")
	for command, parts := range map[string][]string{
		"check -v":                     {"kubelet-rights", "manager-running", "serving-asked"},
		"explain --node check-runbook": {obj.Name, "csr-approver NotAuthorized", "Next step"},
		"explain " + obj.Name:          {"csr-approver NotAuthorized", "held by"},
		"pending":                      {obj.Name, "NotAuthorized"},
	} {
		output, _ := runPlugin(t, controlPlane(t).Config, strings.Fields(command)...) // the exit code shows the findings
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
