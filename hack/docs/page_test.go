package docs

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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
