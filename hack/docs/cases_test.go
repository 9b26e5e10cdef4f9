package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestSlug(t *testing.T) {
	t.Parallel()
	for heading, want := range map[string]string{
		"The proof of trust":           "the-proof-of-trust",
		"`explain` and `check`":        "explain-and-check",
		"What it does, and why?":       "what-it-does-and-why",
		"A – B":                        "a--b",
		"snake_case kebab-case Größe":  "snake_case-kebab-case-größe",
		"[A link](x.md) in a *heading": "a-link-in-a-heading",
	} {
		p := parse("page.md", []byte("# "+heading+"\n"))
		if !p.anchors[want] || len(p.anchors) != 1 {
			t.Errorf("%q: anchors %v, want %q", heading, p.anchors, want)
		}
	}
	twice := parse("page.md", []byte("# A\n\n# A\n\n# A 1\n\n<a id=\"own\"></a>\n\n```\n# no heading\n```\n"))
	for _, want := range []string{"a", "a-1", "a-1-1", "own"} {
		if !twice.anchors[want] {
			t.Errorf("anchors %v, want %q too", twice.anchors, want)
		}
	}
	if len(twice.anchors) != 4 {
		t.Errorf("anchors %v, want 4", twice.anchors)
	}
}

func TestBrokenLinks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ file, text, want string }{
		"page":                        {text: "[x](b.md)"},
		"anchor":                      {text: "[x](b.md#the-end)"},
		"anchor in the page":          {text: "# Own\n\n[x](#own)"},
		"folder":                      {text: "[x](..)"},
		"another site":                {text: "[x](https://example.com/none) <https://example.com>"},
		"link in a code block":        {text: "```\n[x](none.md)\n```\n\nand `[x](none.md)`"},
		"missing page":                {text: "\nsee\n[x](none.md)", want: `docs/a.md:3: link to "none.md": no such file`},
		"missing image":               {text: "![x](none.png)", want: "no such file"},
		"missing page in a table":     {text: "| a |\n|---|\n| [x](none.md) |", want: `docs/a.md:3: link to "none.md"`},
		"missing page by a reference": {text: "[x][1]\n\n[1]: none.md", want: "no such file"},
		"missing anchor":              {text: "[x](b.md#none)", want: "docs/b.md has no heading #none"},
		"missing anchor in the page":  {text: "[x](#none)", want: "docs/a.md has no heading #none"},
		"anchor of a folder":          {text: "[x](..#none)", want: ". is no page with anchors"},
		"absolute path":               {text: "[x](/docs/b.md)", want: "is absolute"},
		"path out of the repository":  {text: "[x](../../b.md)", want: "leads out of the repository"},
		"missing page in code":        {file: "main.go", text: "// docs/none.md says", want: "main.go:1: docs/none.md: no such page"},
		"missing anchor in code":      {file: "main.go", text: "// docs/b.md#none", want: "docs/b.md has no heading #none"},
		"page in code":                {file: "main.go", text: "// docs/b.md#the-end, docs/a.md."},
		"page without a link to it":   {file: "docs/c.md", text: "# C", want: "docs/c.md: no page links to it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			files := map[string]string{
				"README.md": "[a](docs/a.md) [b](docs/b.md)", "docs/a.md": "# A", "docs/b.md": "# B\n\n## The end\n",
			}
			if test.file == "" {
				test.file = "docs/a.md"
			}
			files[test.file] = test.text
			for file, content := range files {
				write(t, filepath.Join(root, file), content)
			}
			if out, err := exec.Command("git", "init", "-q", root).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var problem string
			if err := links(root); err != nil {
				problem = err.Error()
			}
			if (problem == "") != (test.want == "") || !strings.Contains(problem, test.want) {
				t.Errorf("problem %q, want %q", problem, test.want)
			}
		})
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
