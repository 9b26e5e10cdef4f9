package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/guard"
)

// TestGuardEndsWhatIsLeft stops a guard without "done". The guard ends the processes that were not released, and no
// others.
func TestGuardEndsWhatIsLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's $HOME")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBEBUILDER_ASSETS", "/bin")
	wrapped, err := wrap(dir, "cat")
	if err != nil {
		t.Fatal(err)
	}
	g, err := guard.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{guard: g}
	left, released, noted := reader(t, "cat"), reader(t, "cat"), reader(t, wrapped)
	c.Guard(left.Process)
	c.Guard(released.Process)()
	if err := g.Stop(false); err != nil {
		t.Error(err)
	}
	if err := released.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	for command, want := range map[*exec.Cmd]syscall.Signal{left: syscall.SIGKILL, noted: syscall.SIGKILL, released: syscall.SIGTERM} {
		_ = command.Wait()
		if got := command.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != want {
			t.Errorf("%s was ended by %q, want %q", command, got, want)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is there: %v", err)
	}
}

// reader starts path, which reads until the end of its input, and returns once it runs.
func reader(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), path)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := input.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return command
}
