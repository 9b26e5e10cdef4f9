// Package docs tests the documentation: every relative link, every anchor, every page that code mentions, and every Mermaid diagram. It is
// a module of its own, so that the other tests need no browser.
package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
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

// links returns an error with every link below root that leads nowhere.
func links(root string) error {
	pages, err := readPages(root)
	if err != nil {
		return err
	}
	tree := os.DirFS(root)
	var problems []error
	for _, p := range sorted(pages) {
		for _, l := range p.links {
			if err := resolve(tree, pages, p.path, l.target); err != nil {
				problems = append(problems, fmt.Errorf("%s:%d: link to %q: %w", p.path, l.line, l.target, err))
			}
		}
	}
	problems = append(problems, mentioned(root, pages)...)
	for _, name := range unlinked(pages) {
		problems = append(problems, fmt.Errorf("%s: no page links to it", name))
	}
	if len(problems) > 0 {
		return fmt.Errorf("%d problems\n%w", len(problems), errors.Join(problems...))
	}
	return nil
}

// resolve returns why target, a link of the page from, leads nowhere. It does not check links to other sites.
func resolve(tree fs.FS, pages map[string]*page, from, target string) error {
	to, err := url.Parse(target)
	switch {
	case err != nil:
		return err
	case to.Scheme != "" || to.Host != "":
		return nil
	case target == "":
		return errors.New("no target")
	case strings.HasPrefix(to.Path, "/"):
		return errors.New("is absolute: write a relative path")
	}
	name := from
	if to.Path != "" {
		name = path.Join(path.Dir(from), to.Path)
	}
	if !fs.ValidPath(name) {
		return errors.New("leads out of the repository")
	}
	if _, err := fs.Stat(tree, name); err != nil {
		return errors.New("no such file")
	}
	return anchor(pages, name, to.Fragment)
}

// anchor returns why the page called name has no such anchor.
func anchor(pages map[string]*page, name, fragment string) error {
	if fragment == "" {
		return nil
	}
	switch p := pages[name]; {
	case p == nil:
		return fmt.Errorf("%s is no page with anchors", name)
	case !p.anchors[fragment]:
		return fmt.Errorf("%s has no heading #%s", name, fragment)
	}
	return nil
}

// mention finds the path of a page, with its anchor, in code, manifests and scripts.
var mention = regexp.MustCompile(`\bdocs/[A-Za-z0-9/_-]+\.md(?:#[A-Za-z0-9_-]+)?`)

// mentioned checks the paths of pages in all other files: in messages, comments and alerts.
func mentioned(root string, pages map[string]*page) (problems []error) {
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return []error{fmt.Errorf("git ls-files: %w", err)}
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if pages[name] != nil || strings.HasPrefix(name, "hack/docs/") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // deleted, and not yet committed
			problems = append(problems, err)
		}
		for _, at := range mention.FindAllIndex(source, -1) {
			target := string(source[at[0]:at[1]])
			file, fragment, _ := strings.Cut(target, "#")
			err := anchor(pages, file, fragment)
			if pages[file] == nil {
				err = errors.New("no such page")
			}
			if err != nil {
				problems = append(problems, fmt.Errorf("%s:%d: %s: %w", name, 1+strings.Count(string(source[:at[0]]), "\n"), target, err))
			}
		}
	}
	return problems
}

// unlinked returns the pages of docs that no other page links to.
func unlinked(pages map[string]*page) []string {
	linked := map[string]bool{}
	for _, p := range pages {
		for _, l := range p.links {
			if to, err := url.Parse(l.target); err == nil && to.Scheme == "" && to.Path != "" {
				linked[path.Join(path.Dir(p.path), to.Path)] = true
			}
		}
	}
	var alone []string
	for _, p := range sorted(pages) {
		inFolder := linked[path.Dir(p.path)] || linked[path.Dir(p.path)+"/"]
		if strings.HasPrefix(p.path, "docs/") && !linked[p.path] && !inFolder {
			alone = append(alone, p.path)
		}
	}
	return alone
}
