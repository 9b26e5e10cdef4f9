package monitoring

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const (
	operatorFile = "../../config/prometheus/rules.yaml"  // the source
	plainFile    = "../../config/prometheus/alerts.yaml" // made from it
	runbooks     = "../../docs/runbooks"
	runbookURL   = "https://github.com/csr-controller-manager/csr-controller-manager/blob/main/docs/runbooks/"
)

// rule is one rule of a rule file.
type rule struct {
	Alert         string            `json:"alert"`
	Expr          string            `json:"expr"`
	For           string            `json:"for,omitempty"`
	KeepFiringFor string            `json:"keep_firing_for,omitempty"`
	Labels        map[string]string `json:"labels"`
	Annotations   map[string]string `json:"annotations"`
}

// ruleFile is a rule file in Prometheus' own form.
type ruleFile struct {
	Groups []struct {
		Name  string  `json:"name"`
		Rules []*rule `json:"rules"`
	} `json:"groups"`
}

func (f ruleFile) rules() []*rule {
	var all []*rule
	for _, group := range f.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readRules(t *testing.T) ruleFile {
	t.Helper()
	var file ruleFile
	if err := yaml.UnmarshalStrict(read(t, plainFile), &file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestPlainRules compares the two forms line by line, including comments. With UPDATE=1 it writes the plain form.
func TestPlainRules(t *testing.T) {
	_, spec, found := bytes.Cut(read(t, operatorFile), []byte("\nspec:\n"))
	if !found {
		t.Fatal("no spec")
	}
	want := regexp.MustCompile(`(?m)^  `).ReplaceAll(spec, nil)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(plainFile, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(want), string(read(t, plainFile))); diff != "" {
		t.Errorf("UPDATE=1 go test -run TestPlainRules ./test/monitoring makes it right (-want +got):\n%s", diff)
	}
}

// TestRunbooks checks that each alert has the annotations that its reader needs, and a page, and that there are no
// other pages.
func TestRunbooks(t *testing.T) {
	index := string(read(t, filepath.Join(runbooks, "README.md")))
	var want []string
	for _, r := range readRules(t).rules() {
		want = append(want, r.Alert+".md")
		if !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("%s has severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["runbook_url"] != runbookURL+r.Alert+".md" {
			t.Errorf("%s has runbook_url %s", r.Alert, r.Annotations["runbook_url"])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s has annotations %v", r.Alert, r.Annotations)
		}
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| \[%[1]s\]\(%[1]s\.md\) \|[^|]*\b%[2]s\b`, r.Alert, r.Labels["severity"]))
		if !row.MatchString(index) {
			t.Errorf("README.md does not have %s with severity %s", r.Alert, r.Labels["severity"])
		}
	}
	files, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, file := range files {
		if name := filepath.Base(file); name != "README.md" {
			got = append(got, name)
			checkPage(t, file)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(slices.Compact(want), got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
}

// checkPage checks that a page has the required sections, and commands for the diagnosis.
func checkPage(t *testing.T, file string) {
	t.Helper()
	text := string(read(t, file))
	sections := regexp.MustCompile(`(?m)^##? .*$`).FindAllString(text, -1)
	want := []string{"# " + strings.TrimSuffix(filepath.Base(file), ".md"), "## Meaning", "## Impact", "## Diagnosis", "## What to do", "## False alarm"}
	if diff := cmp.Diff(want, sections); diff != "" {
		t.Errorf("%s has the sections (-want +got):\n%s", file, diff)
	}
	if !strings.Contains(text, "```sh\n") {
		t.Errorf("%s has no commands", file)
	}
}
