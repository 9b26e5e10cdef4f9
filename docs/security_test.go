package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityPage wants each test that docs/explanation/security.md and reliability.md name, and a link to each of the
// security runbooks.
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
	page := namedTestsExist(t, "explanation/security.md", tests)
	namedTestsExist(t, "explanation/reliability.md", tests)
	pages, err := filepath.Glob("runbooks/security/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no runbooks", err)
	}
	for _, file := range pages {
		if !strings.Contains(page, "](../"+file+")") {
			t.Errorf("explanation/security.md does not link to %s", file)
		}
	}
}

// namedTestsExist checks that each test that a page names is one of tests. It returns the page.
func namedTestsExist(t *testing.T, file string, tests map[string]bool) string {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(strings.ReplaceAll(string(page), "func TestName", ""), -1)
	if len(named) < 30 {
		t.Errorf("%s names only %d tests", file, len(named))
	}
	for _, name := range named {
		if !tests[name] {
			t.Errorf("%s: there is no test %s", file, name)
		}
	}
	return string(page)
}
