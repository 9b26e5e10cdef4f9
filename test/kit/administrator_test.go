package kit

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestManagersRunUnderShippedRoles lists each file of the tests that starts a manager. Those of the kit refuse the
// administrator's configuration. The others have a reason to start something on their own.
func TestManagersRunUnderShippedRoles(t *testing.T) {
	t.Parallel()
	reasons := map[string]string{
		"kit/loop.go":                     "StartLoopAs refuses the administrator",
		"kit/manager.go":                  "NewManager and StartNamed refuse the administrator",
		"loop/kubelet_test.go":            "it plays a suite that uses csrenv: csrenv binds the roles of kubelets, which only an administrator may do",
		"manager/takeover_test.go":        "kube-controller-manager",
		"rotation/rotation_split_test.go": "the ServiceAccounts of the Deployments of config/overlays/split",
	}
	starts, found := regexp.MustCompile(`(\bmanager\.New|\bcsrenv\.Start|\.StartProcess)\(`), map[string]string{}
	for _, folder := range []string{"kit", "loop", "manager", "rotation"} {
		files, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d files in %s, error %v", len(files), folder, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			NoError(t, err)
			if name := folder + "/" + filepath.Base(file); starts.Match(text) {
				found[name] = reasons[name]
			}
		}
	}
	if !maps.Equal(found, reasons) {
		t.Errorf("managers are started in\n%q, want\n%q\nStart them with StartManager, StartLoop or NewManager.", found, reasons)
	}
}
