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

// Manager builds the manager once, and returns the path of the program. It has no race detector, which finds in it what it
// finds in csrenv, and costs much processor time. All test packages share the program, so the second package finds it up to date. The working directory must be that of a
// package two levels below the module's root, as go test sets it.
var Manager = sync.OnceValues(func() (string, error) {
	return buildManager(context.Background(), filepath.Join("..", ".."))
})

// Plugin builds the kubectl plugin as Manager builds the manager.
var Plugin = sync.OnceValues(func() (string, error) {
	return buildProgram(context.Background(), filepath.Join("..", ".."), "kubectl-csr", "./cmd/kubectl-csr")
})

func buildManager(ctx context.Context, root string) (path string, err error) {
	return buildProgram(ctx, root, "csr-controller-manager", ".")
}

// buildProgram builds a package of the module at root, and returns the path of the program called name.
func buildProgram(ctx context.Context, root, name, folder string) (path string, err error) {
	path, err = filepath.Abs(filepath.Join(root, "bin", "test", name))
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
	defer func() { err = errors.Join(err, lock.Close()) }() // closing releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", path, folder)
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, output)
	}
	return path, nil
}
