// Package docs tests the documentation: every relative link, every anchor, every page that code mentions, and every Mermaid diagram. It is
// a module of its own, so that the other tests need no browser.
package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

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
