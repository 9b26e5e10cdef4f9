// Package tutorials runs the commands of docs/tutorials as a reader does. With -v it prints them, and their output: "make demo".
package tutorials

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestTutorials runs the tutorials that use make run. They share its control plane, so they run one after the other.
func TestTutorials(t *testing.T) {
	kit.Require(t, os.Getenv("KUBEBUILDER_ASSETS") != "", "KUBEBUILDER_ASSETS is not set: run the tests with make test")
	repository := t.TempDir() // stands for the repository's folder, with the programs that make build and the reader put there
	for name, build := range map[string]func() (string, error){
		"csr-controller-manager": cluster.Manager, "kubectl-csr": cluster.Plugin,
	} {
		kit.NoError(t, os.Symlink(kit.Must(build())(t), filepath.Join(repository, name)))
	}
	build := exec.Command("go", "build", "-o", repository, "../../docs/tutorials/webhook", "../../hack/run")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	exports := makeRun(t, repository)
	for _, name := range []string{"first-certificate.md", "join-a-node.md", "webhook-certificate.md"} {
		t.Run(name, func(t *testing.T) {
			follow(t, repository, exports, kit.Must(os.ReadFile(filepath.Join("..", "..", "docs", "tutorials", name)))(t))
		})
	}
}

// block matches a block of commands, and the block of their output if one follows.
var block = regexp.MustCompile("(?s)```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?")

// follow runs the commands of a page in one shell, and finds each line of the outputs in what they print.
func follow(t *testing.T, repository, exports string, page []byte) {
	t.Helper()
	const end = "end of the block"
	script := "set -euo pipefail\nexec 2>&1\n" + exports
	blocks, outputs := block.FindAllSubmatch(page, -1), 0
	for _, block := range blocks {
		script += string(block[1]) + "echo '" + end + "'\n"
		if len(block[2]) > 0 {
			outputs++
		}
	}
	kit.Require(t, outputs >= 3, "the page has %d blocks of commands, and only %d have an output to compare", len(blocks), outputs)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script)
	shell.Dir, shell.Env = repository, append(os.Environ(), "TMPDIR="+t.TempDir())
	all, err := shell.Output()
	kit.Require(t, err == nil, "%v\n%s", err, all)
	printed := strings.Split(string(all), end)
	for i, block := range blocks {
		if testing.Verbose() {
			fmt.Printf("\n$ %s%s", strings.ReplaceAll(strings.TrimSpace(string(block[1])), "\n", "\n  "), printed[i])
		}
		for line := range strings.Lines(string(block[2])) {
			kit.Check(t, strings.Contains(stable(printed[i]), stable(strings.TrimSpace(line))),
				"block %d does not print\n%sbut\n%s", i+1, line, printed[i])
		}
	}
}

// makeRun does what make run does, until the test ends. It returns the lines for another shell that make run prints.
func makeRun(t *testing.T, repository string) (exports string) {
	t.Helper()
	command := exec.Command(filepath.Join(repository, "run"), "-manager", filepath.Join(repository, "csr-controller-manager"))
	command.Stderr = os.Stderr
	output := kit.Must(command.StdoutPipe())(t)
	kit.NoError(t, command.Start())
	kit.AtEnd(t, func() error { return errors.Join(command.Process.Signal(syscall.SIGTERM), command.Wait()) })
	for lines := bufio.NewScanner(output); lines.Scan() && !strings.HasPrefix(lines.Text(), "The manager's log: "); {
		if line := strings.TrimSpace(lines.Text()); strings.HasPrefix(line, "export ") {
			exports += line + "\n"
		}
	}
	kit.Require(t, strings.Count(exports, "\n") == 2, "make run prints %q", exports)
	return exports
}

// changing matches what differs from one run to the next: numbers, digests, tokens, months and the width of columns.
var changing = regexp.MustCompile(`\b[0-9a-f]{16,}\b|\bbootstrap:[a-z0-9]{6}\b|[0-9]+|\b[A-Z][a-z]{2} +[0-9]+ | +`)

func stable(text string) string { return changing.ReplaceAllString(text, "~") }
