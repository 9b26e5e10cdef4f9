package main

import (
	"bytes"
	"context"
	"encoding/json"
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
	// shortPatience is how long a turn waits for something that a mutant may never do. fullPatience is the test's own
	// value.
	shortPatience, fullPatience = "4s", "15s"
	// limit bounds one run of the test.
	limit = 4 * time.Minute
)

var (
	// failure finds the row that noticed: it can't reach its wanted state, or reached it in another way.
	failure = regexp.MustCompile(`(?m)this can't become right: own-([^;\n]*)|^    --- FAIL: TestParity/(.*) \(|(ours exceeds the shipped roles): `)
	// quiet finds a row that has not reached its wanted state.
	quiet = regexp.MustCompile(`nothing happens any more: own-([^;\n]*)`)
	// unitFailure finds a unit test that has noticed.
	unitFailure = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	// abnormal finds an end that is not the end of a turn.
	abnormal = regexp.MustCompile(`the program has ended by itself|(?m)^panic: `)
)

// lab is a folder with a copy of the tree, the compiled parity test, and the recorded results of
// kube-controller-manager. Mutants are overlays of the copy (go help build, -overlay), so that go rebuilds only what
// a mutation changes.
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

func (l *lab) tree() string     { return filepath.Join(l.dir, "tree") }
func (l *lab) test() string     { return filepath.Join(l.dir, "parity.test") }
func (l *lab) recorded() string { return filepath.Join(l.dir, "kube-controller-manager.json") }

// prepare copies the tree and runs the tests on the copy without a mutation. They must pass, and the parity test
// records kube-controller-manager. Every mutation must apply.
func (l *lab) prepare(ctx context.Context, chosen []mutation) error {
	if err := l.copy(ctx); err != nil {
		return err
	}
	var errs []error
	for _, one := range chosen {
		if _, err := one.applied(l.tree()); err != nil {
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
		if err := l.passes(ctx, one.tests); err != nil {
			return err
		}
	}
	return nil
}

// passes builds tests, which may take long the first time, and runs them on the tree without a mutation.
func (l *lab) passes(ctx context.Context, tests string) error {
	unchanged, err := l.overlay("unchanged", nil)
	if err != nil {
		return err
	}
	name, build := "parity", []string{"test", "-c", "-o", l.test(), "./test/parity"}
	run := func() (string, error) { return l.parity(ctx, unchanged, fullPatience) }
	if tests != "" {
		name, build = tests, []string{"vet", strings.Fields(tests)[0]}
		run = func() (string, error) { return l.unit(ctx, unchanged, tests) }
	}
	if out, err := l.command(ctx, l.tree(), "go", build...); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	start := time.Now()
	if out, err := run(); err != nil {
		return fmt.Errorf("%s fails without a mutation: %w\n%s", name, err, out)
	}
	fmt.Printf("ok        the tree as it is: %s (%s)\n", name, time.Since(start).Round(time.Second))
	return nil
}

// overlay writes an overlay of the tree that replaces files by contents, and returns its path.
func (l *lab) overlay(name string, files map[string][]byte) (string, error) {
	dir, err := os.MkdirTemp(l.dir, "overlay-"+strings.Map(plain, name)+"-")
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for file, content := range files {
		mutant := filepath.Join(dir, filepath.Base(file))
		replace[filepath.Join(l.tree(), file)] = mutant
		if err := os.WriteFile(mutant, content, 0o600); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	path := filepath.Join(dir, "overlay.json")
	return path, errors.Join(err, os.WriteFile(path, data, 0o600))
}

// plain replaces characters that a file name can't contain.
func plain(r rune) rune {
	if r >= 'a' && r <= 'z' {
		return r
	}
	return '-'
}

// judge runs a test with one mutation, and returns whether the test notices it.
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
	mutated, err := one.applied(l.tree())
	if err != nil {
		return broken, err.Error()
	}
	if !strings.HasSuffix(one.file, ".go") { // an overlay replaces only what is compiled
		return l.tryFile(ctx, one, mutated)
	}
	overlay, err := l.overlay(one.rule, map[string][]byte{one.file: mutated})
	if err != nil {
		return broken, err.Error()
	}
	if one.tests == "" {
		out, err := l.parity(ctx, overlay, patience)
		return parityVerdict(out, err, patience)
	}
	return unitVerdict(l.unit(ctx, overlay, one.tests))
}

// parityVerdict interprets the output of the parity test.
func parityVerdict(out string, err error, patience string) (kind, detail string) {
	failed, waited := failure.FindStringSubmatch(out), quiet.FindStringSubmatch(out)
	switch {
	case err == nil:
		return survived, "parity passes"
	case abnormal.MatchString(out) || failed == nil && waited == nil:
		return broken, fmt.Sprintf("%v\n%s", err, out)
	case failed != nil:
		return caught, fmt.Sprintf("%.80s", strings.Join(failed[1:], ""))
	case patience == shortPatience:
		return slow, fmt.Sprintf("%.80s", waited[1])
	}
	return caught, fmt.Sprintf("%.80s, and stays so", waited[1])
}

// tryFile changes a file of the tree for one run. No other mutation may be tried meanwhile: the defects run one by one.
func (l *lab) tryFile(ctx context.Context, one mutation, mutated []byte) (kind, detail string) {
	path := filepath.Join(l.tree(), one.file)
	original, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, mutated, 0o600)
	}
	if err != nil {
		return broken, err.Error()
	}
	overlay, err := l.overlay(one.rule, nil)
	if err == nil {
		kind, detail = unitVerdict(l.unit(ctx, overlay, one.tests))
	}
	if err := errors.Join(err, os.WriteFile(path, original, 0o600)); err != nil {
		return broken, err.Error()
	}
	return kind, detail
}

// unit runs go test on the tree with overlay.
func (l *lab) unit(ctx context.Context, overlay, tests string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := append([]string{"test", "-overlay", overlay, "-count=1", "-failfast", "-timeout=3m"}, strings.Fields(tests)...)
	return l.command(ctx, l.tree(), "go", args...)
}

// unitVerdict interprets the output of go test.
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

// parity builds the program from the tree with overlay, and runs the test with it.
func (l *lab) parity(ctx context.Context, overlay, patience string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	binary := filepath.Join(filepath.Dir(overlay), "csr-controller-manager")
	build := []string{"CGO_ENABLED=0", "go", "build", "-overlay", overlay, "-ldflags=-s -w", "-o", binary, "."}
	if out, err := l.command(ctx, l.tree(), "env", build...); err != nil {
		return out, fmt.Errorf("build: %w", err)
	}
	defer func() { _ = os.Remove(binary) }() // it is large
	return l.command(ctx, filepath.Join(l.tree(), "test", "parity"), "env", "PARITY_BINARY="+binary,
		"PARITY_RECORDED="+l.recorded(), "PARITY_PATIENCE="+patience,
		l.test(), "-test.v", "-test.run=^TestParity$", "-test.timeout=3m")
}

// copy copies the files that git tracks or would add.
func (l *lab) copy(ctx context.Context) error {
	list, err := l.command(ctx, ".", "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return fmt.Errorf("list files: %w", err)
	}
	for file := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, but not yet committed
		}
		target := filepath.Join(l.tree(), file)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(target), 0o750), os.WriteFile(target, content, 0o600)); err != nil {
			return err
		}
	}
	return nil
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
