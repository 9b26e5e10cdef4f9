package docs

import (
	"os"
	"strings"
	"testing"
)

// TestArchitectureNamesEveryPackage wants each folder of controllers, internal, pkg and test in the tree of architecture.md.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("explanation/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tree, _ := strings.Cut(string(page), "\n```\nmain.go ")
	tree, _, _ = strings.Cut(tree, "```\n")
	_, tests, found := strings.Cut(tree, "\ntest/ ")
	if !found {
		t.Fatal("no tree")
	}
	for _, parent := range []string{"controllers", "internal", "pkg", "test"} {
		entries, err := os.ReadDir("../" + parent)
		if err != nil || len(entries) == 0 {
			t.Fatalf("%d entries in %s: %v", len(entries), parent, err)
		}
		for _, entry := range entries {
			name := entry.Name()
			named := strings.Contains(tree, "\n  "+name+"/ ")
			if parent == "test" {
				named = strings.Contains(tests, " "+name)
			}
			if entry.IsDir() && !named {
				t.Errorf("%s/%s is not in the tree", parent, name)
			}
		}
	}
}
