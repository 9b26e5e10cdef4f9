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
// runbooks about stolen credentials.
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
	runbook, err := os.ReadFile("runbooks/stolen-credentials.md")
	sections := regexp.MustCompile(`(?m)^- \[.*\]\((#[a-z-]+)\)`).FindAllSubmatch(runbook, -1)
	if err != nil || len(sections) == 0 {
		t.Fatal("no runbooks", err)
	}
	for _, section := range sections {
		if !strings.Contains(page, "](../runbooks/stolen-credentials.md"+string(section[1])+")") {
			t.Errorf("explanation/security.md does not link to the runbook %s", section[1])
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
