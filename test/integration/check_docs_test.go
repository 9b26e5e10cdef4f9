package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// runbook returns the shell functions of docs/runbooks/README.md.
func runbook(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbooks", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var functions []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(block[1], "() {\n") {
			functions = append(functions, block[1])
		}
	}
	if len(functions) != 3 {
		t.Fatalf("%d functions", len(functions))
	}
	return strings.Join(functions, "")
}

// TestRunbookCommands runs the commands of the runbooks that an administrator runs on a workstation. No result may be
// unknown because of missing rights.
func TestRunbookCommands(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	startLoop(t, csrenv.Options{})
	obj := createRequest(t, as(t, "joiner"), nodeRequest(t, "check-runbook"))
	hasEvent(t, obj, "NotAuthorized")
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := controlPlane(t).WriteKubeconfig("runbook", controlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	for command, parts := range map[string][]string{
		"check --all":                {"optional-rights", "by that certificate (X509SHA256="},
		"check --node check-runbook": {obj.Name, "Event NotAuthorized", "there is no such Node, and it has no Lease"},
		"explain " + obj.Name:        {"CALoaded", `"NotAuthorized" by "csr-approver"`},
	} {
		script := exec.CommandContext(t.Context(), "bash", "-c", runbook(t)+"csr-controller-manager "+command)
		script.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"))
		written, _ := script.CombinedOutput() // the exit code shows the findings
		output := unwrapped(string(written))
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

// TestRunbookCommandsOfThePlugin runs what the runbooks have an administrator run on a workstation: nothing is unknown for want of
// rights. The manager has published its configuration.
func TestRunbookCommandsOfThePlugin(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	startManager(t, serviceAccountConfig(t))
	awaitPublished(t, "csr-controller-manager", "user: ", ofAllSigners)
	obj := createRequest(t, as(t, "joiner"), nodeRequest(t, "check-runbook"))
	hasEvent(t, obj, "NotAuthorized")
	for command, parts := range map[string][]string{
		"check -v":                   {"optional-rights", "own-rights", "by that certificate (X509SHA256=", "manager csr-controller-manager"},
		"check --node check-runbook": {obj.Name, "Event NotAuthorized", "there is no such Node, and it has no Lease"},
		"explain " + obj.Name:        {"NotAuthorized"},
	} {
		output, _ := runPlugin(t, controlPlane(t).Config, strings.Fields(command)...) // the exit code says what is found
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
