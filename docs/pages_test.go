// Package docs tests what pages say about the source. The module hack/docs checks links, anchors and diagrams.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, file string) string {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// TestArchitectureNamesEveryPackage wants each folder of controllers, internal, pkg and test in the tree of architecture.md.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	t.Parallel()
	_, tree, _ := strings.Cut(read(t, "explanation/architecture.md"), "\n```\nmain.go ")
	tree, _, _ = strings.Cut(tree, "```\n")
	_, tests, _ := strings.Cut(tree, "\ntest/ ")
	for _, parent := range []string{"controllers", "internal", "pkg", "test"} {
		entries, err := os.ReadDir("../" + parent)
		if err != nil || len(entries) == 0 {
			t.Fatalf("%d entries in %s: %v", len(entries), parent, err)
		}
		for _, entry := range entries {
			named := strings.Contains(tree, "\n  "+entry.Name()+"/ ") || parent == "test" && strings.Contains(tests, " "+entry.Name())
			if entry.IsDir() && !named {
				t.Errorf("%s/%s is not in the tree", parent, entry.Name())
			}
		}
	}
}

// TestSecurityPage wants each test that docs/explanation/security.md and reliability.md name, and a link to each of the
// runbooks about stolen credentials.
func TestSecurityPage(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	if err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, path), -1) {
				tests[found[1]] = true
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"explanation/security.md", "explanation/reliability.md"} {
		named := regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(strings.ReplaceAll(read(t, file), "func TestName", ""), -1)
		if len(named) < 30 {
			t.Errorf("%s names only %d tests", file, len(named))
		}
		for _, name := range named {
			if !tests[name] {
				t.Errorf("%s: there is no test %s", file, name)
			}
		}
	}
	sections := regexp.MustCompile(`(?m)^- \[.*\]\((#[a-z-]+)\)`).FindAllStringSubmatch(read(t, "runbooks/stolen-credentials.md"), -1)
	if len(sections) == 0 {
		t.Fatal("no runbooks")
	}
	for _, section := range sections {
		if !strings.Contains(read(t, "explanation/security.md"), "](../runbooks/stolen-credentials.md"+section[1]+")") {
			t.Errorf("explanation/security.md does not link to the runbook %s", section[1])
		}
	}
}
