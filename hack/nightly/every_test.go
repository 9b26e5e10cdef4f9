package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const module = "../.."

// printed returns what a command prints in the folder of the module.
func printed(t *testing.T, name string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir = module
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return string(output)
}

// patterns returns the patterns of the tests that the commands in text select, by the path of the file.
func patterns(t *testing.T, commands, text string) map[string][]*regexp.Regexp {
	t.Helper()
	const files = "{{$dir := .Dir}}{{range .TestGoFiles}}{{$dir}}/{{.}}\n{{end}}{{range .XTestGoFiles}}{{$dir}}/{{.}}\n{{end}}"
	selected := map[string][]*regexp.Regexp{}
	for _, command := range regexp.MustCompile(commands).FindAllStringSubmatch(strings.ReplaceAll(text, "\\\n", " "), -1) {
		arguments, pattern := []string{"list", "-f", files}, ""
		words := strings.Fields(printed(t, "bash", "-c", "echo "+command[1]))
		for i, word := range words {
			switch {
			case word == "-tags":
				arguments = append(arguments, word, words[i+1])
			case word == "-run":
				pattern = words[i+1]
			case strings.HasPrefix(word, "./"), strings.HasPrefix(word, "github.com/"):
				arguments = append(arguments, word)
			}
		}
		for file := range strings.FieldsSeq(printed(t, "go", arguments...)) {
			selected[file] = append(selected[file], regexp.MustCompile(pattern))
		}
	}
	return selected
}

// TestEveryTestRuns checks that "make test" runs each test of the module, or another target of make or a part if its file has a build tag.
// No command may select tests of "make test" by their names, so that a new test runs.
func TestEveryTestRuns(t *testing.T) {
	t.Parallel()
	parts, err := readParts("parts.yaml")
	expect.NoError(t, err)
	more := printed(t, "make", "--dry-run", "--no-print-directory", "e2e", "bench", "reliability")
	for _, p := range parts {
		more += p.Command + "\n"
	}
	perChange := patterns(t, `go test (.*)`, printed(t, "make", "--dry-run", "--no-print-directory", "test"))
	tagged := patterns(t, `go test (-tags .*)`, more)
	root, err := filepath.Abs(module)
	expect.NoError(t, err)
	seen := 0
	for file := range strings.Lines(printed(t, "git", "ls-files", "--cached", "--others", "--exclude-standard", "*_test.go")) {
		path := filepath.Join(root, strings.TrimSpace(file))
		source, err := os.ReadFile(path)
		expect.NoError(t, err)
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), "go.mod")); err == nil { // another module
			continue
		}
		selected := perChange[path]
		if strings.HasPrefix(string(source), "//go:build ") {
			selected = tagged[path]
		}
		for _, name := range regexp.MustCompile(`(?m)^func (Test\w+)\(\w+ \*testing\.T\)`).FindAllStringSubmatch(string(source), -1) {
			seen++
			expect.True(t, slices.ContainsFunc(selected, func(pattern *regexp.Regexp) bool { return pattern.MatchString(name[1]) }),
				"%s in %s: neither \"make test\" nor a part of %s runs it", name[1], file, list)
		}
	}
	expect.True(t, seen >= 400, "only %d tests", seen)
}
