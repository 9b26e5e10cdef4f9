package docs

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSlug(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"# `explain` and `check`":        "explain-and-check",
		"# What it does, and why?":       "what-it-does-and-why",
		"# A – B":                        "a--b",
		"# snake_case kebab-case Größe":  "snake_case-kebab-case-größe",
		"# [A link](x.md) in a *heading": "a-link-in-a-heading",
		"# A\n\n# A\n\n# A 1\n\n<a id=\"own\"></a>\n\n```\n# no heading\n```\n": "a a-1 a-1-1 own",
	} {
		got := slices.Sorted(maps.Keys(parse("page.md", source).anchors))
		if strings.Join(got, " ") != want {
			t.Errorf("%q: anchors %q, want %q", source, got, want)
		}
	}
}

// TestBrokenLinks checks a tree with good and broken links.
func TestBrokenLinks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for file, text := range map[string]string{
		"README.md": "[a](docs/a.md) [b](docs/b.md) [docs](docs/good.md)",
		"docs/b.md": "# B\n\n## The end\n",
		"docs/good.md": "# Own\n[x](b.md) [x](b.md#the-end) [x](#own) [x](..) [x](https://example.com/none) <https://example.com>\n" +
			"```\n[x](none.md)\n```\n\nand `[x](none.md)`",
		"docs/a.md": "# A\n\n[x](none.md)\n![x](none.png)\n\n| a |\n|---|\n| [x](table.md) |\n\n[x][1]\n\n" +
			"[x](b.md#none) [x](#none)\n[x](..#none)\n[x](/docs/b.md)\n[x](../../b.md)\n\n[1]: reference.md\n",
		"docs/c.md": "# C",
		"main.go":   "// docs/none.md says\n// docs/b.md#none\n// docs/b.md#the-end, docs/a.md.\n",
	} {
		write(t, filepath.Join(root, file), text)
	}
	if out, err := exec.Command("git", "init", "-q", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := `12 problems
docs/a.md:3: link to "none.md": no such file
docs/a.md:4: link to "none.png": no such file
docs/a.md:8: link to "table.md": no such file
docs/a.md:12: link to "b.md#none": docs/b.md has no heading #none
docs/a.md:12: link to "#none": docs/a.md has no heading #none
docs/a.md:13: link to "..#none": . is no page with anchors
docs/a.md:14: link to "/docs/b.md": is absolute: write a relative path
docs/a.md:15: link to "../../b.md": leads out of the repository
docs/a.md:17: link to "reference.md": no such file
main.go:1: docs/none.md: no such page
main.go:2: docs/b.md#none: docs/b.md has no heading #none
docs/c.md: no page links to it`
	if err := links(root); err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	succeed(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o600)))
}

func succeed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
