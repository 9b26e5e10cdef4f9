package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityPage wants each test that docs/explanation/security.md names, and a link to each of the security runbooks.
func TestSecurityPage(t *testing.T) {
	tests := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(source, -1) {
			tests[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("explanation/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(strings.ReplaceAll(string(page), "func TestName", ""), -1)
	if len(named) < 30 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, name := range named {
		if !tests[name] {
			t.Errorf("there is no test %s", name)
		}
	}
	pages, err := filepath.Glob("runbooks/security/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no runbooks", err)
	}
	for _, file := range pages {
		if !strings.Contains(string(page), "](../"+file+")") {
			t.Errorf("explanation/security.md does not link to %s", file)
		}
	}
}
