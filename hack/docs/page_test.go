package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// page is a Markdown file: its anchors, its links, and its Mermaid diagrams.
type page struct {
	path     string
	anchors  map[string]bool
	links    []link
	diagrams []diagram
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

// readPages returns all pages, by path: those in root, in docs and beside the charts.
func readPages(root string) (map[string]*page, error) {
	tree, pages := os.DirFS(root), map[string]*page{}
	tops, err := fs.Glob(tree, "*.md")
	charts, chartsErr := fs.Glob(tree, "charts/*/README.md")
	names := append(tops, charts...)
	err = errors.Join(err, chartsErr, fs.WalkDir(tree, "docs", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	}))
	for _, name := range names {
		source, problem := fs.ReadFile(tree, name)
		err = errors.Join(err, problem)
		pages[name] = parse(name, string(source))
	}
	return pages, err
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
