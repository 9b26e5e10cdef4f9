package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// lab is a copy of the tree, without ignored files, and the program gremlins. Gremlins copies the tree once more for
// each worker.
type lab struct {
	dir, tree, gremlins string
	workers             int
	env                 []string // with this program as the go command
}

func newLab(workers int) (*lab, error) {
	dir, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, tree: filepath.Join(dir, "tree"), gremlins: filepath.Join(dir, "gremlins"), workers: workers}
	build := exec.Command("go", "build", "-modfile=hack/gremlins.mod", "-o", l.gremlins, "github.com/go-gremlins/gremlins/cmd/gremlins")
	if text, err := build.CombinedOutput(); err != nil {
		l.remove()
		return nil, fmt.Errorf("build gremlins: %w\n%s", err, text)
	}
	if err := errors.Join(l.copyTree(), l.replaceGo()); err != nil {
		l.remove()
		return nil, fmt.Errorf("prepare a copy of the tree: %w", err)
	}
	return l, nil
}

// replaceGo makes this program the go command in gremlins' PATH, see asGo.
func (l *lab) replaceGo() error {
	goCommand, err := exec.LookPath("go")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	bin := filepath.Join(l.dir, "bin")
	l.env = append(os.Environ(), realGo+"="+goCommand, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return errors.Join(os.Mkdir(bin, 0o755), os.Symlink(self, filepath.Join(bin, "go")))
}

func (l *lab) remove() { _ = os.RemoveAll(l.dir) }

// copyTree copies the files that git knows or would add.
func (l *lab) copyTree() error {
	list, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		info, err := os.Lstat(name)
		if err != nil || !info.Mode().IsRegular() {
			continue // deleted, or a link
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		to := filepath.Join(l.tree, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, data, info.Mode()); err != nil {
			return err
		}
	}
	return nil
}

// mutant is one change of one operator.
type mutant struct {
	file, mutation, status string
	line, column           int
	code                   string // the line, without spaces around it
}

// results is the JSON output of gremlins.
type results struct {
	Files []struct {
		Name      string `json:"file_name"`
		Mutations []struct {
			Line   int    `json:"line"`
			Column int    `json:"column"`
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"mutations"`
	} `json:"files"`
}

// buildTests builds the tests of t, because gremlins measures how long build and tests take, and computes its timeout.
func (l *lab) buildTests(t target) error {
	command := exec.Command("go", "test", "-cover", "-run", "^$", "./"+t.Dir+"/...")
	command.Dir = l.tree
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build tests: %w\n%s", err, text)
	}
	return nil
}

// unleash mutates the package and returns every mutant. If verbose is set, gremlins prints each mutant when its tests have
// ended. If dryRun is set, gremlins only lists the mutants, and the status of a covered mutant is runnable.
func (l *lab) unleash(t target, verbose, dryRun bool) ([]mutant, error) {
	if err := l.buildTests(t); err != nil {
		return nil, err
	}
	output := filepath.Join(l.dir, "result.json")
	if err := os.Remove(output); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	args := []string{
		"unleash", fmt.Sprintf("--silent=%t", !verbose), "--output", output,
		"--workers", strconv.Itoa(l.workers), "--timeout-coefficient", "10",
		// The operators that gremlins does not change by default. --invert-bitwise is missing: gremlins also changes the &
		// of an address, which never compiles.
		"--invert-logical", "--invert-loopctrl", "--invert-assignments", "--remove-self-assignments", "--invert-bwassign",
	}
	if dryRun {
		args = append(args, "--dry-run")
	}
	for _, file := range l.excluded(t) {
		args = append(args, "--exclude-files", "^"+regexp.QuoteMeta(file)+"$")
	}
	command := exec.Command(l.gremlins, append(args, "./"+t.Dir)...)
	command.Dir, command.Env = l.tree, append(l.env, slowTests+"="+t.Slow)
	var text bytes.Buffer
	command.Stdout, command.Stderr = &text, &text
	if verbose {
		command.Stdout = io.MultiWriter(&text, os.Stdout)
	}
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("gremlins: %w\n%s", err, text.String())
	}
	all, err := l.read(t, output)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("gremlins found nothing to mutate:\n%s", text.String())
	}
	return all, nil
}

// read returns the mutants of gremlins' JSON output.
func (l *lab) read(t target, output string) ([]mutant, error) {
	data, err := os.ReadFile(output)
	if err != nil {
		return nil, err
	}
	var read results
	if err := json.Unmarshal(data, &read); err != nil {
		return nil, err
	}
	var all []mutant
	for _, file := range read.Files {
		name := filepath.Join(t.Dir, file.Name)
		source, err := os.ReadFile(filepath.Join(l.tree, name))
		if err != nil {
			return nil, err
		}
		lines := strings.Split(string(source), "\n")
		for _, m := range file.Mutations {
			code := strings.TrimSpace(lines[m.Line-1])
			all = append(all, mutant{name, m.Type, m.Status, m.Line, m.Column, code})
		}
	}
	return all, nil
}

// excluded returns the files of t that are not to be mutated.
func (l *lab) excluded(t target) []string {
	if len(t.Files) == 0 {
		return nil
	}
	found, err := filepath.Glob(filepath.Join(l.tree, t.Dir, "*.go"))
	if err != nil {
		panic(err) // the pattern is malformed
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return slices.DeleteFunc(found, func(name string) bool { return slices.Contains(t.Files, name) })
}
