package main

import (
	"path/filepath"
	"strings"
	"testing"
)

const goodDiagram = "# A\n\n```mermaid\nflowchart LR\n  kubelet -->|request| approver\n```\n"

// TestDiagrams needs npm and Chromium, as "make docs-check" does.
func TestDiagrams(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "docs/good.md"), goodDiagram)
	write(t, filepath.Join(root, "docs/bad.md"), "# B\n\ntext\n\n```mermaid\nflowchart LR\n  a -->|\n```\n")
	all, err := allDiagrams(root)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d diagrams, want 2: %v", len(all), err)
	}
	images, err := render("../..", all)
	if err != nil {
		t.Fatal(err)
	}
	if problem := images[0].problem(); all[0].line != 6 || !strings.Contains(problem, "Parse error") {
		t.Errorf("line %d, problem %q, want a parse error in line 6", all[0].line, problem)
	}
	if problem := images[1].problem(); problem != "" {
		t.Error(problem)
	}
}

func TestNoDiagrams(t *testing.T) {
	t.Setenv("PATH", "")
	root := t.TempDir()
	write(t, filepath.Join(root, "docs/a.md"), "# A\n")
	if err := diagrams(root); err != nil {
		t.Error(err)
	}
	write(t, filepath.Join(root, "docs/b.md"), goodDiagram)
	const want = "apt-get install nodejs npm"
	if err := diagrams(root); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
