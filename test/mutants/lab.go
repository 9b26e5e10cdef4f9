package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/guard"
)

const (
	// patience is how long a turn of the parity test waits for something that a mutant may never do.
	patience = "15s"
	// limit bounds one run of a test.
	limit = 4 * time.Minute
)

var (
	// parityFailure finds the row that noticed: it can't reach its wanted state, or reached it in another way.
	parityFailure = regexp.MustCompile(`(?m)(?:this can't become right|nothing happens any more): own-([^;\n]*)|` +
		`^    --- FAIL: TestParity/(.*) \(|(ours exceeds the shipped roles): `)
	// unitFailure finds a unit test that has noticed.
	unitFailure = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	// abnormal finds an end that is not the end of a turn.
	abnormal = regexp.MustCompile(`the program has ended by itself|(?m)^panic: `)
)

// lab is a folder with a copy of the tree for each worker, the compiled parity test, and the recorded results of
// kube-controller-manager.
type lab struct {
	dir   string
	guard *guard.Guard
}

func newLab() (*lab, error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	guarding, err := guard.Start(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &lab{dir: dir, guard: guarding}, nil
}

func (l *lab) close() error { return errors.Join(l.guard.Stop(true), os.RemoveAll(l.dir)) }

func (l *lab) tree(worker int) string { return filepath.Join(l.dir, fmt.Sprint("tree-", worker)) }

// copy copies the files that git tracks or would add.
func (l *lab) copy(ctx context.Context, workers int) error {
	list, err := l.command(ctx, ".", "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return fmt.Errorf("list files: %w", err)
	}
	for file := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, but not yet committed
		}
		for worker := range workers {
			target := filepath.Join(l.tree(worker), file)
			if err := errors.Join(err, os.MkdirAll(filepath.Dir(target), 0o750), os.WriteFile(target, content, 0o600)); err != nil {
				return err
			}
		}
	}
	return nil
}

// prepare runs the tests without a mutation. They must pass, and the parity test records kube-controller-manager. Every mutation must
// apply.
func (l *lab) prepare(ctx context.Context, chosen []mutation) error {
	seen := map[string]bool{}
	for _, one := range chosen {
		if _, err := one.applied(l.tree(0)); err != nil {
			return fmt.Errorf("%s: %w", one.rule, err)
		}
		if seen[one.tests] {
			continue
		}
		seen[one.tests] = true
		if one.tests == "" {
			if out, err := l.command(ctx, l.tree(0), "go", "test", "-c", "-o", l.parity(), "./test/parity"); err != nil {
				return fmt.Errorf("build parity: %w\n%s", err, out)
			}
		}
		if out, err := l.test(ctx, l.tree(0), one.tests); err != nil {
			return fmt.Errorf("%s fails without a mutation: %w\n%s", one.tests, err, out)
		}
	}
	return nil
}

func (l *lab) parity() string { return filepath.Join(l.dir, "parity.test") }

// try runs a test with one mutation. It returns which test notices the mutation, or an error.
func (l *lab) try(ctx context.Context, tree string, one mutation) (by string, err error) {
	path := filepath.Join(tree, one.file)
	original, unread := os.ReadFile(path)
	mutated, err := one.applied(tree)
	if err := errors.Join(unread, err, os.WriteFile(path, mutated, 0o600)); err != nil {
		return "", err
	}
	out, failed := l.test(ctx, tree, one.tests)
	if err := errors.Join(ctx.Err(), os.WriteFile(path, original, 0o600)); err != nil {
		return "", err
	}
	failure := unitFailure
	if one.tests == "" {
		failure = parityFailure
	}
	found := failure.FindStringSubmatch(out)
	switch {
	case failed == nil:
		return "", errors.New("SURVIVED: the tests pass")
	case found == nil || one.tests == "" && abnormal.MatchString(out):
		return "", fmt.Errorf("BROKEN, it proves nothing: %w\n%s", failed, out)
	}
	return strings.Join(found[1:], ""), nil
}

// test runs go test on the tree, or builds the manager and runs the parity test with it.
func (l *lab) test(ctx context.Context, tree, tests string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if tests != "" {
		return l.command(ctx, tree, "go", append([]string{"test", "-count=1", "-failfast", "-timeout=3m"}, strings.Fields(tests)...)...)
	}
	binary := tree + ".manager"
	if out, err := l.command(ctx, tree, "env", "CGO_ENABLED=0", "go", "build", "-ldflags=-s -w", "-o", binary, "."); err != nil {
		return out, fmt.Errorf("build: %w", err)
	}
	return l.command(ctx, filepath.Join(tree, "test", "parity"), "env", "PARITY_BINARY="+binary, "PARITY_PATIENCE="+patience,
		"PARITY_RECORDED="+filepath.Join(l.dir, "kube-controller-manager.json"),
		l.parity(), "-test.v", "-test.run=^TestParity$", "-test.timeout=3m")
}

// applied returns the file of the mutation in tree, with the rule replaced.
func (m mutation) applied(tree string) ([]byte, error) {
	source, err := os.ReadFile(filepath.Join(tree, m.file))
	if err != nil {
		return nil, err
	}
	if found := bytes.Count(source, []byte(m.old)); found != 1 {
		return nil, fmt.Errorf("%s has %q %d times, want once: bring the list of mutations up to date", m.file, m.old, found)
	}
	return bytes.Replace(source, []byte(m.old), []byte(m.new), 1), nil
}

// command runs in its own process group, which the guard knows.
func (l *lab) command(ctx context.Context, dir, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	if name == "git" {
		cmd.Stderr = os.Stderr
	}
	cmd.Env = append(os.Environ(), "GOTMPDIR="+l.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		return "", err
	}
	release := l.guard.Group(cmd.Process.Pid)
	err := cmd.Wait()
	release()
	return out.String(), err
}
