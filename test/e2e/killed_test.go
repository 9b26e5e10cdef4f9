//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestKilledRunLeavesNothing starts a run within this run, and kills it once its first kubelet has started a pod.
func TestKilledRunLeavesNothing(t *testing.T) {
	dir := os.Getenv(dirVariable)
	self, err := os.Executable()
	kit.NoError(t, err)
	before, err := traces(noRun)
	kit.NoError(t, err)
	outer := exec.Command(self, "-test.run", "^TestDeployment$")
	outer.Env = append(os.Environ(), roleVariable+"=outer")
	kit.NoError(t, outer.Start())
	t.Cleanup(func() { _ = outer.Process.Kill() })
	var logs []string
	until(t, time.Minute, "the run has started a pod", func(context.Context) (bool, error) {
		logs, err = filepath.Glob(filepath.Join(podLogDir(filepath.Join(dir, "csr-e2e-*"), "*"), "*", "*", "0.log"))
		return len(logs) > 0, err
	})
	kit.NoError(t, outer.Process.Kill())
	_ = outer.Wait() // an error, because it was killed
	killed := logs[0]
	for filepath.Dir(killed) != dir {
		killed = filepath.Dir(killed)
	}
	kit.Within(t, 30*time.Second, "nothing is left of it", func(context.Context) error { return leftBehind(before, killed) })
}
