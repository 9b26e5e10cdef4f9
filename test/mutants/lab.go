package main

import (
	"bytes"
	"cmp"
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

	"github.com/csr-controller-manager/csr-controller-manager/test/guard"
)

const (
	// shortPatience is how long a turn waits for what a mutant may never do, fullPatience what the test itself has.
	shortPatience, fullPatience = "4s", "15s"
	// limit bounds one run of the test.
	limit = 4 * time.Minute
)

var (
	// failure finds the row that noticed: one that can't become what it should, or that became it in another way.
	failure = regexp.MustCompile(`(?m)this can't become right: own-([^;\n]*)|^    --- FAIL: TestParity/(.*) \(`)
	// quiet finds a row that has not become what it should.
	quiet = regexp.MustCompile(`nothing happens any more: own-([^;\n]*)`)
	// unitFailure finds a unit test that has noticed.
	unitFailure = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	// abnormal finds an end that is none of a turn.
	abnormal = regexp.MustCompile(`the program has ended by itself|(?m)^panic: `)
)

// lab is a folder with the compiled test, what kube-controller-manager did, and a copy of the tree for each mutant.
type lab struct {
	dir   string
	guard *guard.Guard
}

func newLab() (*lab, error) {
	dir, err := os.MkdirTemp("", "parity-mutants-")
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

func (l *lab) test() string     { return filepath.Join(l.dir, "parity.test") }
func (l *lab) recorded() string { return filepath.Join(l.dir, "kube-controller-manager.json") }

// prepare compiles the test, and runs it on the tree as it is: it must pass, and records kube-controller-manager. All
// mutations must find their place.
func (l *lab) prepare(ctx context.Context, chosen []mutation) error {
	tree, err := l.copy(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, one := range chosen {
		if _, err := one.applied(tree); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", one.rule, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, one := range chosen {
		if seen[one.tests] {
			continue
		}
		seen[one.tests] = true
		if err := l.passes(ctx, tree, one.tests); err != nil {
			return err
		}
	}
	return os.RemoveAll(tree)
}

// passes runs tests on the tree as it is. The parity test is compiled first.
func (l *lab) passes(ctx context.Context, tree, tests string) error {
	start, name := time.Now(), cmp.Or(tests, "parity")
	run := func() (string, error) { return l.unit(ctx, tree, tests) }
	if tests == "" {
		if out, err := l.command(ctx, tree, "go", "test", "-c", "-o", l.test(), "./test/parity"); err != nil {
			return fmt.Errorf("compile the test: %w\n%s", err, out)
		}
		run = func() (string, error) { return l.parity(ctx, tree, fullPatience) }
	}
	if out, err := run(); err != nil {
		return fmt.Errorf("%s fails without a mutation: %w\n%s", name, err, out)
	}
	fmt.Printf("ok        the tree as it is: %s (%s)\n", name, time.Since(start).Round(time.Second))
	return nil
}

// judge says whether a test notices one mutation.
func (l *lab) judge(ctx context.Context, one mutation, patience string) verdict {
	start := time.Now()
	kind, detail := l.try(ctx, one, patience)
	if ctx.Err() != nil {
		kind = skipped
	}
	return verdict{one, kind, detail, time.Since(start)}
}

func (l *lab) try(ctx context.Context, one mutation, patience string) (kind, detail string) {
	if ctx.Err() != nil {
		return skipped, ""
	}
	tree, err := l.copy(ctx)
	if err != nil {
		return broken, err.Error()
	}
	defer func() { _ = os.RemoveAll(tree) }()
	mutated, err := one.applied(tree)
	if err := errors.Join(err, os.WriteFile(filepath.Join(tree, one.file), mutated, 0o600)); err != nil {
		return broken, err.Error()
	}
	if one.tests != "" {
		return unitVerdict(l.unit(ctx, tree, one.tests))
	}
	out, err := l.parity(ctx, tree, patience)
	failed, waited := failure.FindStringSubmatch(out), quiet.FindStringSubmatch(out)
	switch {
	case err == nil:
		return survived, "parity passes"
	case abnormal.MatchString(out) || failed == nil && waited == nil:
		return broken, fmt.Sprintf("%v\n%s", err, out)
	case failed != nil:
		return caught, fmt.Sprintf("%.80s%.80s", failed[1], failed[2])
	case patience == shortPatience:
		return slow, fmt.Sprintf("%.80s", waited[1])
	}
	return caught, fmt.Sprintf("%.80s, and stays so", waited[1])
}

// unit runs go test in tree. Without the folder's name in it, what a mutation leaves alone comes from the build cache.
func (l *lab) unit(ctx context.Context, tree, tests string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := append([]string{"test", "-trimpath", "-count=1", "-failfast", "-timeout=3m"}, strings.Fields(tests)...)
	return l.command(ctx, tree, "go", args...)
}

// unitVerdict says what the output of go test means.
func unitVerdict(out string, err error) (kind, detail string) {
	failed := unitFailure.FindStringSubmatch(out)
	switch {
	case err == nil:
		return survived, "the tests pass"
	case failed == nil:
		return broken, fmt.Sprintf("%v\n%s", err, out)
	}
	return caught, failed[1]
}

// parity builds the program in tree and runs the test with it.
func (l *lab) parity(ctx context.Context, tree, patience string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	binary := filepath.Join(tree, "csr-controller-manager")
	// Without the folder's name in it, what a mutation leaves alone comes from the build cache.
	if out, err := l.command(ctx, tree, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "."); err != nil {
		return out, fmt.Errorf("build: %w", err)
	}
	return l.command(ctx, filepath.Join(tree, "test", "parity"), "env", "PARITY_BINARY="+binary, "PARITY_RECORDED="+l.recorded(),
		"PARITY_PATIENCE="+patience, l.test(), "-test.v", "-test.run=^TestParity$", "-test.timeout=3m")
}

// copy copies what git knows or would add.
func (l *lab) copy(ctx context.Context) (string, error) {
	tree, err := os.MkdirTemp(l.dir, "tree-")
	if err != nil {
		return "", err
	}
	list, err := l.command(ctx, ".", "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return "", fmt.Errorf("list files: %w", err)
	}
	for file := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, but not yet committed
		}
		target := filepath.Join(tree, file)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(target), 0o750), os.WriteFile(target, content, 0o600)); err != nil {
			return "", err
		}
	}
	return tree, nil
}

// applied returns the file of the mutation in tree, with the one place replaced that has the rule.
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

// command runs in a process group of its own, which the guard knows.
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
