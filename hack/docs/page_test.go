package docs

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// page is a Markdown file: its anchors, its links, and its Mermaid diagrams.
type page struct {
	path     string
	anchors  map[string]bool
	links    []link
	diagrams []diagram
}

// link is a link or an image, with the line of the file in which it begins.
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

// pagePaths returns the paths of all pages below root: README.md, CONTRIBUTING.md, CHANGELOG.md, docs and the charts'
// README.
func pagePaths(root fs.FS) ([]string, error) {
	paths, err := fs.Glob(root, "charts/*/README.md")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		if _, err := fs.Stat(root, name); err == nil {
			paths = append(paths, name)
		}
	}
	err = fs.WalkDir(root, "docs", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".md" {
			paths = append(paths, name)
		}
		return err
	})
	return paths, err
}

// readPages returns all pages below root, by path.
func readPages(root string) (map[string]*page, error) {
	tree := os.DirFS(root)
	paths, err := pagePaths(tree)
	if err != nil {
		return nil, err
	}
	pages := map[string]*page{}
	for _, name := range paths {
		source, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		pages[name] = parse(name, source)
	}
	return pages, nil
}

// markdown parses pages as GitHub does.
var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM))

// htmlAnchor finds the anchors in HTML.
var htmlAnchor = regexp.MustCompile(`<[a-zA-Z0-9]+[^>]* (?:id|name)="([^"]+)"`)

// parse returns the page with that source.
func parse(name string, source []byte) *page {
	p := &page{path: name, anchors: map[string]bool{}}
	slugs := map[string]int{}
	document := markdown.Parser().Parse(text.NewReader(source))
	_ = ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch node := node.(type) {
		case *ast.Heading:
			p.anchors[unique(slugs, slug(plain(node, source)))] = true
		case *ast.Link:
			p.links = append(p.links, link{lineOf(node, source), string(node.Destination)})
		case *ast.Image:
			p.links = append(p.links, link{lineOf(node, source), string(node.Destination)})
		case *ast.RawHTML:
			p.html(node.Segments.Value(source))
		case *ast.HTMLBlock:
			p.html(node.Lines().Value(source))
		case *ast.FencedCodeBlock:
			if string(node.Language(source)) == "mermaid" {
				p.diagrams = append(p.diagrams, diagram{name, lineOf(node, source), string(node.Lines().Value(source))})
			}
		}
		return ast.WalkContinue, nil
	})
	return p
}

// html adds the anchors in source.
func (p *page) html(source []byte) {
	for _, match := range htmlAnchor.FindAllSubmatch(source, -1) {
		p.anchors[string(match[1])] = true
	}
}

// lineOf returns the line in which the first text of node, or else of what contains node, begins.
func lineOf(node ast.Node, source []byte) int {
	start := -1
	_ = ast.Walk(node, func(child ast.Node, _ bool) (ast.WalkStatus, error) {
		if content, is := child.(*ast.Text); is {
			start = content.Segment.Start
			return ast.WalkStop, nil
		}
		return ast.WalkContinue, nil
	})
	for ; start < 0 && node != nil; node = node.Parent() {
		if node.Type() == ast.TypeBlock && node.Lines().Len() > 0 {
			start = node.Lines().At(0).Start
		}
	}
	return 1 + bytes.Count(source[:max(start, 0)], []byte("\n"))
}

// plain returns the text of node without its markup.
func plain(node ast.Node, source []byte) string {
	var out strings.Builder
	_ = ast.Walk(node, func(child ast.Node, entering bool) (ast.WalkStatus, error) {
		switch child := child.(type) {
		case *ast.Text:
			if entering {
				out.Write(child.Segment.Value(source))
			}
		case *ast.String:
			if entering {
				out.Write(child.Value)
			}
		}
		return ast.WalkContinue, nil
	})
	return out.String()
}

// slug returns the anchor that GitHub gives a heading: in lower case, with - for a space, and with word characters only.
func slug(heading string) string {
	word := func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Pc):
			return unicode.ToLower(r)
		}
		return -1
	}
	return strings.Map(word, heading)
}

// unique returns anchor as GitHub numbers it if the page has it already.
func unique(seen map[string]int, anchor string) string {
	count, known := seen[anchor]
	seen[anchor] = count + 1
	if !known {
		return anchor
	}
	return unique(seen, fmt.Sprintf("%s-%d", anchor, count))
}

// sorted returns pages in the order of their paths.
func sorted(pages map[string]*page) []*page {
	var all []*page
	for _, p := range pages {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *page) int { return strings.Compare(a.path, b.path) })
	return all
}
