//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestKilledRunLeavesNothing starts a run within this run, and kills it once its first kubelet has started a pod.
func TestKilledRunLeavesNothing(t *testing.T) {
	dir := os.Getenv(dirVariable)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	before := lookAround()
	outer := exec.Command(self, "-test.run", "^TestDeployment$")
	outer.Env = append(os.Environ(), roleVariable+"=outer")
	if err := outer.Start(); err != nil {
		t.Fatal(err)
	}
	var logs []string
	err = until(t.Context(), time.Minute, "the run has started a pod", func(context.Context) (bool, error) {
		logs, err = filepath.Glob(filepath.Join(podLogDir(filepath.Join(dir, "csr-e2e-*"), "*"), "*", "*", "0.log"))
		return len(logs) > 0, err
	})
	if err := errors.Join(err, outer.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = outer.Wait() // an error, because it was killed
	killed := logs[0]
	for filepath.Dir(killed) != dir {
		killed = filepath.Dir(killed)
	}
	err = until(t.Context(), 30*time.Second, "nothing is left of it", func(context.Context) (bool, error) {
		err := before.check(killed)
		return err == nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
}
