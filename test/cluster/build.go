package cluster

import (
	"context"
	"fmt"
	"os/exec"
)

// BuildManager builds the manager from the module in root to out: with the race detector, unless there is no C compiler,
// which it needs.
func BuildManager(ctx context.Context, root, out string) error {
	args := []string{"build", "-o", out}
	if _, err := exec.LookPath("gcc"); err == nil {
		args = append(args, "-race")
	}
	build := exec.CommandContext(ctx, "go", append(args, ".")...)
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the manager: %w\n%s", err, output)
	}
	return nil
}
