package monitoring

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// promtool runs promtool and returns its whole output.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), tool(t, "PROMTOOL"), args...).CombinedOutput()
	return string(output), err
}

func TestRules(t *testing.T) {
	if output, err := promtool(t, "check", "rules", "--lint=all", "--lint-fatal", plainFile); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	if output, err := promtool(t, append([]string{"test", "rules"}, ruleTests(t)...)...); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func ruleTests(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("rules/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	return files
}
