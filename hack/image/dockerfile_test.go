package main

import (
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// No container engine is available to build the Dockerfile, so these tests check only its text.

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	succeed(t, err)
	return string(data)
}

// TestDockerfile checks that the builder is pinned and new enough, and that the image is the image of make image.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	text := read(t, "Dockerfile")
	builder := regexp.MustCompile(`(?m)^FROM --platform=\$BUILDPLATFORM docker\.io/library/golang:([0-9.]+)\S*@sha256:[0-9a-f]{64} AS build$`).FindStringSubmatch(text)
	module := regexp.MustCompile(`(?m)^go ([0-9.]+)$`).FindStringSubmatch(read(t, "go.mod"))
	if builder == nil || module == nil {
		t.Fatalf("builder %q, go.mod %q", builder, module)
	}
	if version.Compare("go"+builder[1], "go"+module[1]) < 0 {
		t.Errorf("the builder has Go %s, go.mod wants %s", builder[1], module[1])
	}
	if strings.Count(text, "\nFROM ") != 2 || !strings.Contains(text, "\nFROM scratch\n") {
		t.Error("there is a stage beside the builder and the empty image")
	}
	for _, line := range []string{"USER " + user, `ENTRYPOINT ["/` + name + `"]`} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	for key, value := range (settings{}).labels() {
		if fixed := key + `="` + value + `"`; value != "" && !strings.HasSuffix(key, ".created") && !strings.Contains(text, fixed) {
			t.Errorf("no label %s", fixed)
		}
	}
}

// TestDockerignore checks that the build's context contains all sources of the binary.
func TestDockerignore(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}", ".")
	list.Dir = root
	output, err := list.Output()
	succeed(t, err)
	ignored := strings.Fields(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(read(t, ".dockerignore"), ""))
	packages := strings.Fields(string(output))
	if len(packages) < 8 || len(ignored) < 5 {
		t.Fatalf("packages %q, ignored %q", packages, ignored)
	}
	for _, path := range packages {
		folder := strings.TrimPrefix(path, "github.com/csr-controller-manager/csr-controller-manager/")
		for _, entry := range ignored {
			if folder == entry || strings.HasPrefix(folder, entry+"/") {
				t.Errorf("%s is ignored by %s", path, entry)
			}
		}
	}
}
