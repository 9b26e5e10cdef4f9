// Package docs tests the documentation: every relative link, every anchor, every page that code mentions, and every Mermaid diagram. It is
// a module of its own, so that the other tests need no browser.
package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// page is a file. Of a Markdown file it has the anchors, the links, and the Mermaid diagrams.
type page struct {
	path, source string
	anchors      map[string]bool
	links        []link
	diagrams     []diagram
}

// link is a link or an image, with its line in the file.
type link struct {
	line   int
	target string
}

// diagram is a Mermaid block, with the line of the file in which it begins.
type diagram struct {
	path string
	line int
	text string
}

// isPage matches the paths of the pages: those in root, in docs and beside the charts.
var isPage = regexp.MustCompile(`^([^/]+|docs/.+|charts/[^/]+/README)\.md$`)

// readPages returns all pages, and all other files, by path. It leaves out this package, whose tests have paths of pages.
func readPages(root string) (pages, others map[string]*page, err error) {
	pages, others = map[string]*page{}, map[string]*page{}
	names, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		source, problem := os.ReadFile(filepath.Join(root, name))
		switch {
		case errors.Is(problem, os.ErrNotExist): // deleted, and not yet committed
		case problem != nil:
			err = errors.Join(err, problem)
		case isPage.MatchString(name):
			pages[name] = parse(name, string(source))
		case !strings.HasPrefix(name, "hack/docs/"):
			others[name] = &page{path: name, source: string(source)}
		}
	}
	return pages, others, err
}

var (
	// fence matches a block of code, with its language and text.
	fence = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")
	code  = regexp.MustCompile("`[^`\n]*`")
	// target matches the targets of links and images, or of a definition such as "[1]: page.md".
	target     = regexp.MustCompile(`(?m)\]\(([^)\s]*)|^\[[^\]\n]+\]: (\S+)`)
	heading    = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	headLink   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	htmlAnchor = regexp.MustCompile(`<[a-zA-Z0-9]+[^>]* (?:id|name)="([^"]+)"`)
)

// parse returns the page with that source.
func parse(name, source string) *page {
	p := &page{path: name, anchors: map[string]bool{}}
	lineOf := func(at int) int { return 1 + strings.Count(source[:at], "\n") }
	for _, at := range fence.FindAllStringSubmatchIndex(source, -1) {
		if source[at[2]:at[3]] == "mermaid" {
			p.diagrams = append(p.diagrams, diagram{name, lineOf(at[4]), source[at[4]:at[5]]})
		}
	}
	source = fence.ReplaceAllStringFunc(source, blank)
	for _, found := range heading.FindAllStringSubmatch(source, -1) {
		anchor := slug(headLink.ReplaceAllString(found[1], "$1"))
		for base, count := anchor, 1; p.anchors[anchor]; count++ { // as GitHub numbers it
			anchor = fmt.Sprintf("%s-%d", base, count)
		}
		p.anchors[anchor] = true
	}
	source = code.ReplaceAllStringFunc(source, blank)
	for _, found := range htmlAnchor.FindAllStringSubmatch(source, -1) {
		p.anchors[found[1]] = true
	}
	for _, at := range target.FindAllStringSubmatchIndex(source, -1) {
		p.links = append(p.links, link{lineOf(at[0]), source[max(at[2], at[4]):max(at[3], at[5])]})
	}
	return p
}

// blank replaces text by as many characters that have no meaning, so that lines keep their numbers.
func blank(text string) string { return regexp.MustCompile(`[^\n]`).ReplaceAllString(text, " ") }

// slug returns the anchor that GitHub gives a heading: in lower case, with - for a space, and with word characters only.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Pc):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// sorted returns pages in the order of their paths.
func sorted(pages map[string]*page) []*page {
	return slices.SortedFunc(maps.Values(pages), func(a, b *page) int { return strings.Compare(a.path, b.path) })
}

const root = "../.."

func TestLinks(t *testing.T) {
	t.Parallel()
	if err := links(root); err != nil {
		t.Error(err)
	}
}

// mention finds the path of a page, with its anchor, in code, manifests and scripts.
var mention = regexp.MustCompile(`\bdocs/[A-Za-z0-9/_-]+\.md(?:#[A-Za-z0-9_-]+)?`)

// links returns an error with every link below root that leads nowhere, every path of a page in another file that leads nowhere, and every
// page of docs that no page links to.
func links(root string) error {
	pages, others, err := readPages(root)
	if err != nil {
		return err
	}
	var problems []error
	check := func(file, kind, target string, line int, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s:%d: %s: %w", file, line, fmt.Sprintf(kind, target), err))
		}
	}
	tree, linked := os.DirFS(root), map[string]bool{}
	for _, p := range sorted(pages) {
		for _, l := range p.links {
			to, err := resolve(tree, pages, p.path, l.target)
			linked[to] = linked[to] || to != p.path
			check(p.path, "link to %q", l.target, l.line, err)
		}
	}
	for _, p := range sorted(others) {
		for _, at := range mention.FindAllStringIndex(p.source, -1) {
			target := p.source[at[0]:at[1]]
			file, fragment, _ := strings.Cut(target, "#")
			err := errors.New("no such page")
			if pages[file] != nil {
				err = anchor(pages, file, fragment)
			}
			check(p.path, "%s", target, 1+strings.Count(p.source[:at[0]], "\n"), err)
		}
	}
	for _, p := range sorted(pages) {
		if strings.HasPrefix(p.path, "docs/") && !linked[p.path] && !linked[path.Dir(p.path)] {
			problems = append(problems, fmt.Errorf("%s: no page links to it", p.path))
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("%d problems\n%w", len(problems), errors.Join(problems...))
	}
	return nil
}

// resolve returns the file that target, a link of the page from, leads to, and why it leads nowhere. It does not check links to other sites.
func resolve(tree fs.FS, pages map[string]*page, from, target string) (string, error) {
	to, err := url.Parse(target)
	switch {
	case err != nil:
		return from, err
	case to.Scheme != "" || to.Host != "":
		return from, nil
	case target == "":
		return from, errors.New("no target")
	case strings.HasPrefix(to.Path, "/"):
		return from, errors.New("is absolute: write a relative path")
	}
	name := from
	if to.Path != "" {
		name = path.Join(path.Dir(from), to.Path)
	}
	if !fs.ValidPath(name) {
		return from, errors.New("leads out of the repository")
	}
	if _, err := fs.Stat(tree, name); err != nil {
		return from, errors.New("no such file")
	}
	return name, anchor(pages, name, to.Fragment)
}

// anchor returns why the page called name has no such anchor.
func anchor(pages map[string]*page, name, fragment string) error {
	switch p := pages[name]; {
	case fragment == "":
		return nil
	case p == nil:
		return fmt.Errorf("%s is no page with anchors", name)
	case !p.anchors[fragment]:
		return fmt.Errorf("%s has no heading #%s", name, fragment)
	}
	return nil
}

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
