package main

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "../.."

// testRun is a command that runs "go test".
type testRun struct {
	tags     map[string]bool
	run      *regexp.Regexp // of -run, or nil
	but      *regexp.Regexp // with it, the command tests all packages but these
	packages []string
}

var (
	goTest   = regexp.MustCompile(`go test (.*)`)
	ofTags   = regexp.MustCompile(` -tags (\S+)`)
	ofRun    = regexp.MustCompile(` -run '([^']*)'`)
	others   = regexp.MustCompile(`go list \./\.\.\. \| grep -vE '([^']+)'`)
	packages = regexp.MustCompile(`\./(\S+)`)
)

// testRuns returns the commands in text.
func testRuns(text string) (found []testRun) {
	pattern := func(of *regexp.Regexp, line string) *regexp.Regexp {
		if argument := of.FindStringSubmatch(line); argument != nil {
			return regexp.MustCompile(argument[1])
		}
		return nil
	}
	for _, line := range goTest.FindAllString(strings.ReplaceAll(text, "\\\n", " "), -1) {
		r := testRun{tags: map[string]bool{}, run: pattern(ofRun, line), but: pattern(others, line)}
		for _, tags := range ofTags.FindAllStringSubmatch(line, -1) {
			for tag := range strings.SplitSeq(tags[1], ",") {
				r.tags[tag] = true
			}
		}
		for _, each := range packages.FindAllStringSubmatch(line, -1) {
			r.packages = append(r.packages, each[1])
		}
		found = append(found, r)
	}
	return found
}

// tests reports whether the command runs a test of a package, whose file needs build tags.
func (r testRun) tests(folder string, needs constraint.Expr, name string) bool {
	if needs != nil && !needs.Eval(func(tag string) bool { return r.tags[tag] }) || r.run != nil && !r.run.MatchString(name) {
		return false
	}
	if r.but != nil {
		return !r.but.MatchString("/" + folder)
	}
	return slices.ContainsFunc(r.packages, func(one string) bool {
		above, all := strings.CutSuffix(one, "/...")
		return folder == above || all && strings.HasPrefix(folder, above+"/")
	})
}

// TestEveryTestRuns checks that "make test" runs each test of the module, or another target of make or a part if its file has a build tag.
// No command may select tests of "make test" by their names, so that a new test runs.
func TestEveryTestRuns(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), "make", "--dry-run", "--no-print-directory", "test")
	command.Dir = module
	made, err := command.Output()
	succeed(t, err)
	perChange := testRuns(string(made))
	makefile, err := os.ReadFile(filepath.Join(module, "Makefile"))
	succeed(t, err)
	tagged := testRuns(string(makefile))
	parts, err := readParts("parts.yaml")
	succeed(t, err)
	for _, p := range parts {
		tagged = append(tagged, testRuns(p.Command)...)
	}
	seen := 0
	succeed(t, filepath.WalkDir(module, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if name := entry.Name(); path != module && (err == nil || name == "testdata" || name == "bin" || name != ".." && strings.HasPrefix(name, ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		folder, err := filepath.Rel(module, filepath.Dir(path))
		if err != nil {
			return err
		}
		needs, names, err := testsOf(path)
		for _, name := range names {
			seen++
			runs := perChange
			if needs != nil {
				runs = tagged
			}
			if !slices.ContainsFunc(runs, func(r testRun) bool { return r.tests(folder, needs, name) }) {
				t.Errorf("%s in %s (%v): neither \"make test\" nor a part of %s runs it", name, path, needs, list)
			}
		}
		return err
	}))
	if seen < 400 {
		t.Errorf("only %d tests", seen)
	}
}

// testsOf returns the build constraint of a file, unless it is only about the race detector, and the names of its tests.
func testsOf(path string) (needs constraint.Expr, names []string, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	for _, group := range file.Comments {
		for _, comment := range group.List {
			if constraint.IsGoBuild(comment.Text) && comment.Pos() < file.Package && !strings.Contains(comment.Text, "race") {
				if needs, err = constraint.Parse(comment.Text); err != nil {
					return nil, nil, err
				}
			}
		}
	}
	for _, declared := range file.Decls {
		if function, ok := declared.(*ast.FuncDecl); ok && function.Recv == nil && strings.HasPrefix(function.Name.Name, "Test") && function.Name.Name != "TestMain" {
			names = append(names, function.Name.Name)
		}
	}
	return needs, names, nil
}
