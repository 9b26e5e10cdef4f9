package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

// Manager builds the manager once, with the race detector unless there is no C compiler, which it needs. It returns the
// path of the program. All test packages share the program, so the second package finds it up to date. The working
// directory is that of a package two levels below the module's root, as go test sets it.
var Manager = sync.OnceValues(func() (string, error) {
	return buildManager(context.Background(), filepath.Join("..", ".."))
})

func buildManager(ctx context.Context, root string) (path string, err error) {
	path, err = filepath.Abs(filepath.Join(root, "bin", "test", "csr-controller-manager"))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(path + ".lock")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }() // which releases it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	args := []string{"build", "-o", path}
	if _, err := exec.LookPath("gcc"); err == nil {
		args = append(args, "-race")
	}
	build := exec.CommandContext(ctx, "go", append(args, ".")...)
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the manager: %w\n%s", err, output)
	}
	return path, nil
}
