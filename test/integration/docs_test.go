package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/commands"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// TestConfigurationPage loads every example of docs/reference/configuration.md, and wants its flags to be those of --help.
func TestConfigurationPage(t *testing.T) {
	parallel(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(examples) != 2 {
		t.Fatalf("%d examples, want 2", len(examples))
	}
	for _, example := range examples {
		file := filepath.Join(t.TempDir(), "config.yaml")
		write(t, file, example[1])
		args := []string{"--config", file}
		if !strings.Contains(string(example[1]), "secret:") {
			args = append(args, "--signing-secret", "a/b")
		}
		if _, _, err := config.Load(args, nil); err != nil {
			t.Errorf("%v in\n%s", err, example[1])
		}
	}
	var help bytes.Buffer
	if err := commands.Execute(t.Context(), []string{"--help"}, &help); err != nil {
		t.Fatal(err)
	}
	for _, flag := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--[a-z-]+`).FindAllString(help.String(), -1) {
		if name := flag[strings.Index(flag, "--"):]; !regexp.MustCompile("`" + name + "[` ]").Match(page) {
			t.Errorf("the page has no flag %s", name)
		}
	}
}

// TestReasonsPage checks that the page explains every reason in the code.
func TestReasonsPage(t *testing.T) {
	parallel(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "reasons.md"))
	if err != nil {
		t.Fatal(err)
	}
	reason := regexp.MustCompile(`(?:Reason: +|Refuse\(|reason := |reason = |tell\(corev1\.EventTypeNormal, |"Sign", |obj, "Ignore", |\{(?:Deny|Wait|Ignore), )"([A-Z][A-Za-z]+)"`)
	found := map[string]bool{}
	for _, folder := range []string{"controllers", "pkg"} {
		err := filepath.WalkDir(filepath.Join("..", "..", folder), func(path string, _ os.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, match := range reason.FindAllSubmatch(source, -1) {
				found[string(match[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range found {
		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("docs/reference/reasons.md does not explain %s", name)
		}
	}
	if len(found) < 11 {
		t.Errorf("only %d reasons found in the code: %v", len(found), found)
	}
}
