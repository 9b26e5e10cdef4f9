// Command mutants takes one rule at a time out of the approver, the signer and the cleaner, and demands that the parity
// test fails each time: then its table is good enough.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	// patience is how long a turn waits for what a mutant may never do.
	patience = "4s"
	// limit bounds one run of the test.
	limit = 4 * time.Minute
)

// failure finds the row that noticed: one that did not become what it should, or one that became it in another way.
var failure = regexp.MustCompile(`(?m)nothing happens any more: own-([^;\n]*)|^    --- FAIL: TestParity/(.*) \(`)

func main() {
	only := flag.String("only", "", "run only mutants whose name matches this `expression`")
	parallel := flag.Int("parallel", 3, "how many mutants to run at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, regexp.MustCompile(*only), *parallel)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only *regexp.Regexp, parallel int) error {
	dir, err := os.MkdirTemp("", "parity-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	lab := lab{dir: dir}
	if err := lab.prepare(ctx); err != nil {
		return err
	}
	queue := make(chan mutation)
	failures := make(chan error, len(mutations))
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for one := range queue {
				failures <- lab.judge(ctx, one)
			}
		})
	}
	for _, one := range mutations {
		if only.MatchString(one.rule) && ctx.Err() == nil {
			queue <- one
		}
	}
	close(queue)
	workers.Wait()
	close(failures)
	errs := []error{ctx.Err()}
	for err := range failures {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lab is a folder with the compiled test, what kube-controller-manager did, and a copy of the tree for each mutant.
type lab struct{ dir string }

func (l lab) test() string     { return filepath.Join(l.dir, "parity.test") }
func (l lab) recorded() string { return filepath.Join(l.dir, "kube-controller-manager.json") }

// prepare compiles the test, and runs it on the tree as it is: it must pass, and records kube-controller-manager.
func (l lab) prepare(ctx context.Context) error {
	if out, err := command(ctx, ".", "go", "test", "-c", "-o", l.test(), "./test/parity"); err != nil {
		return fmt.Errorf("compile the test: %w\n%s", err, out)
	}
	tree, err := l.copy(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if out, err := l.parity(ctx, tree, "15s"); err != nil {
		return fmt.Errorf("parity fails without a mutation: %w\n%s", err, out)
	}
	fmt.Printf("ok        the tree as it is (%s)\n", time.Since(start).Round(time.Second))
	return os.RemoveAll(tree)
}

// judge says whether parity notices one mutation.
func (l lab) judge(ctx context.Context, one mutation) error {
	start := time.Now()
	tree, err := l.copy(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tree) }()
	if err := one.apply(tree); err != nil {
		return fmt.Errorf("%s: %w", one.rule, err)
	}
	out, err := l.parity(ctx, tree, patience)
	rows := failure.FindStringSubmatch(out)
	took := time.Since(start).Round(time.Second)
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		fmt.Printf("SURVIVED  %s (%s)\n", one.rule, took)
		return fmt.Errorf("%s: survived", one.rule)
	case rows == nil:
		fmt.Printf("BROKEN    %s (%s)\n%s\n", one.rule, took, out)
		return fmt.Errorf("%s: no row failed: %w", one.rule, err)
	}
	fmt.Printf("caught    %s: %.80s%.80s (%s)\n", one.rule, rows[1], rows[2], took)
	return nil
}

// parity builds the program in tree and runs the test with it.
func (l lab) parity(ctx context.Context, tree, patience string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	binary := filepath.Join(tree, "csr-controller-manager")
	// Without the folder's name in it, what a mutation leaves alone comes from the build cache.
	if out, err := command(ctx, tree, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "."); err != nil {
		return out, fmt.Errorf("build: %w", err)
	}
	return command(ctx, filepath.Join(tree, "test", "parity"), "env", "PARITY_BINARY="+binary, "PARITY_RECORDED="+l.recorded(),
		"PARITY_PATIENCE="+patience, l.test(), "-test.v", "-test.run=^TestParity$", "-test.timeout=3m")
}

// copy copies what git knows or would add.
func (l lab) copy(ctx context.Context) (string, error) {
	tree, err := os.MkdirTemp(l.dir, "tree-")
	if err != nil {
		return "", err
	}
	list, err := command(ctx, ".", "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
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

// apply replaces the one place that has the rule.
func (m mutation) apply(tree string) error {
	path := filepath.Join(tree, m.file)
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if found := bytes.Count(source, []byte(m.old)); found != 1 {
		return fmt.Errorf("%s has %q %d times, want once: bring the list of mutations up to date", m.file, m.old, found)
	}
	return os.WriteFile(path, bytes.Replace(source, []byte(m.old), []byte(m.new), 1), 0o600)
}

func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	if name == "git" {
		cmd.Stderr = os.Stderr
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	return out.String(), err
}
