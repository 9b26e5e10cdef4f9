package main

import (
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	goldhtml "github.com/yuin/goldmark/renderer/html"
)

// outputs lists the texts that commands print, as the tests and the pages keep them.
var outputs = []string{
	"commands/plugin/testdata/rotation/*.txt",
}

// widths are those of the terminals, in columns.
var widths = []int{80, 120}

// shots writes pictures to bin/shots: each diagram, README's first page, and output of the commands.
func shots(root string) error {
	out, err := filepath.Abs(filepath.Join(root, "bin", "shots"))
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	if err := shootDiagrams(root, out); err != nil {
		return err
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		return err
	}
	if err := shootPage(out, "README", readme); err != nil {
		return err
	}
	texts, err := terminalTexts(root)
	if err != nil {
		return err
	}
	for name, text := range texts {
		if err := shootTerminal(out, name, text); err != nil {
			return err
		}
	}
	fmt.Println("docs: pictures are in", out)
	return nil
}

// terminalTexts returns what commands print, by name.
func terminalTexts(root string) (map[string]string, error) {
	texts := map[string]string{}
	for _, pattern := range outputs {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("no file matches %s: correct outputs", pattern)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			name := filepath.Base(filepath.Dir(file)) + "-" + filepath.Base(file)
			texts[strings.TrimSuffix(name, filepath.Ext(name))] = string(text)
		}
	}
	return texts, nil
}

// shootDiagrams takes a picture of each diagram, as wide as GitHub shows it.
func shootDiagrams(root, out string) error {
	all, err := allDiagrams(root)
	if err != nil || len(all) == 0 {
		return err
	}
	images, err := render(root, all)
	if err != nil {
		return err
	}
	const column = 830.0 // pixels of a page on GitHub
	for i, d := range all {
		if problem := images[i].problem(); problem != "" {
			return fmt.Errorf("%s:%d: %s", d.path, d.line, problem)
		}
		scale := min(1, column/images[i].Width)
		name := fmt.Sprintf("diagram-%s-%d", strings.TrimSuffix(filepath.Base(d.path), ".md"), d.line)
		body := fmt.Sprintf(`<div style="width:%dpx">%s</div>`, int(images[i].Width*scale), images[i].SVG)
		if err := shoot(out, name, body, column+40, images[i].Height*scale+40); err != nil {
			return err
		}
	}
	return nil
}

// pageStyle is close to what GitHub shows.
const pageStyle = `<style>
body {font: 16px/1.5 sans-serif; max-width: 830px; margin: 20px}
pre, code {font: 85% monospace; background: #f0f2f4} pre {padding: 12px; overflow: hidden}
table {border-collapse: collapse} td, th {border: 1px solid #d0d7de; padding: 6px 13px}
h1, h2 {border-bottom: 1px solid #d0d7de}
</style>`

// shootPage takes a picture of the first screens of a page.
func shootPage(out, name string, source []byte) error {
	var body strings.Builder
	github := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(goldhtml.WithUnsafe()))
	if err := github.Convert(source, &body); err != nil {
		return err
	}
	return shoot(out, name, pageStyle+body.String(), 890, 2600)
}

// shootTerminal takes a picture of text in a terminal of each width. A terminal breaks lines between any two characters.
func shootTerminal(out, name, text string) error {
	for _, width := range widths {
		var lines []string
		for line := range strings.Lines(text) {
			rest := []rune(strings.TrimRight(line, "\n"))
			for len(rest) > width {
				lines, rest = append(lines, string(rest[:width])), rest[width:]
			}
			lines = append(lines, string(rest))
		}
		const style = `<style>body {margin: 10px; background: #1e1e1e; color: #ddd}
pre {margin: 0; font: 14px/18px "DejaVu Sans Mono", monospace}</style><pre>`
		body := style + html.EscapeString(strings.Join(lines, "\n")) + "</pre>"
		err := shoot(out, fmt.Sprintf("%s-%d", name, width), body, float64(width)*8.5+20, float64(len(lines))*18+30)
		if err != nil {
			return err
		}
	}
	return nil
}

// shoot takes a picture of a page with that body.
func shoot(out, name, body string, width, height float64) error {
	page := filepath.Join(out, name+".html")
	if err := os.WriteFile(page, []byte("<!DOCTYPE html><meta charset=utf-8>"+body), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(page) }()
	picture := filepath.Join(out, name+".png")
	_, err := browse(page, "--screenshot="+picture, fmt.Sprintf("--window-size=%d,%d", int(width), int(height)))
	return err
}
