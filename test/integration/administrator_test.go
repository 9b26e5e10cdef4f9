package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestManagersRunUnderShippedRoles lists each place that can start a manager. Those in process_test.go and loop_test.go
// refuse the administrator's configuration. The others have a reason to start something on their own.
func TestManagersRunUnderShippedRoles(t *testing.T) {
	t.Parallel()
	places := map[string]map[string]string{
		"manager." + "New(": {"process_test.go": "newManager, which refuses the administrator"},
		"csrenv." + "Start(": {
			"loop_test.go":          "startLoopAs, which refuses the administrator",
			"kubelet_setup_test.go": "it plays a suite that uses csrenv: csrenv binds the roles of kubelets, which only an administrator may do",
		},
		"." + "StartProcess(": {
			"process_test.go":          "startNamed, which refuses the administrator",
			"takeover_test.go":         "startOurs, which uses the ServiceAccount; the others are kube-controller-manager",
			"rotation_split_test.go":   "the ServiceAccounts of the Deployments of config/overlays/split",
			"identity_fixture_test.go": "kube-controller-manager",
			"aggregated_test.go":       "an aggregated API server",
		},
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for call, reasons := range places {
			_, listed := reasons[file]
			switch found := strings.Contains(string(text), call); {
			case found && !listed:
				t.Errorf("%s calls %s...): start managers with startManager, startLoop or newManager", file, call)
			case listed && !found:
				t.Errorf("%s no longer calls %s...)", file, call)
			}
		}
	}
}
