// Package monitoring tests the monitoring of the manager: alert rules, their runbooks and the dashboard. It uses
// promtool and a real Prometheus that scrapes real managers.
package monitoring

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	operatorFile = "../../config/prometheus/rules.yaml"  // the source
	plainFile    = "../../config/prometheus/alerts.yaml" // made from it
	runbook      = "../../docs/runbooks/README.md"
	runbookURL   = "https://github.com/csr-controller-manager/csr-controller-manager/blob/main/docs/runbooks/README.md"
)

// The live tests share a control plane.
func TestMain(m *testing.M) { kit.Main(m, 1) }

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
	return kit.Must(os.ReadFile(path))(t)
}

func readRules(t *testing.T) ruleFile {
	t.Helper()
	var file ruleFile
	kit.NoError(t, yaml.UnmarshalStrict(read(t, plainFile), &file))
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
		kit.NoError(t, os.WriteFile(plainFile, want, 0o600))
	}
	kit.Equal(t, "UPDATE=1 go test -run TestPlainRules ./test/monitoring makes it right", string(read(t, plainFile)), string(want))
}

// TestRunbooks checks that each alert has the annotations that its reader needs, and a section in the runbook, and that there
// are no other sections.
func TestRunbooks(t *testing.T) {
	intro, text, _ := strings.Cut(string(read(t, runbook)), "\n## What each replica says\n")
	sections := map[string]string{}
	for _, section := range strings.Split(text, "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		sections[title] = body
	}
	alerts := map[string]bool{}
	for _, r := range readRules(t).rules() {
		alerts[r.Alert] = true
		severity, anchor, annotations := r.Labels["severity"], "#"+strings.ToLower(r.Alert), r.Annotations
		kit.Check(t, slices.Contains([]string{"info", "warning", "critical"}, severity), "%s has severity %q", r.Alert, severity)
		kit.Check(t, annotations["runbook_url"] == runbookURL+anchor, "%s has runbook_url %s", r.Alert, annotations["runbook_url"])
		kit.Check(t, annotations["summary"] != "" && annotations["description"] != "", "%s has annotations %v", r.Alert, annotations)
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^- \[%s\]\(%s\):.*\b%s\b`, r.Alert, anchor, severity))
		kit.Check(t, row.MatchString(intro), "%s does not list %s with severity %s", runbook, r.Alert, severity)
		for _, part := range []string{"\n**Meaning:** ", "\n```sh\n", "\n**Do:**", "\n**Over** "} {
			kit.Check(t, strings.Contains(sections[r.Alert], part), "section %s of %s has no %q", r.Alert, runbook, part)
		}
	}
	kit.Equal(t, "sections of "+runbook, slices.Sorted(maps.Keys(sections)), slices.Sorted(maps.Keys(alerts)))
}

// tool returns the path of a program of hack/monitoring/get.sh.
func tool(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s is not set: run the tests with make test", variable)
	}
	return path
}

func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), tool(t, "PROMTOOL"), args...).CombinedOutput()
	return string(output), err
}

func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "--lint=all", "--lint-fatal", plainFile}, append([]string{"test", "rules"}, ruleTests(t)...)} {
		output, err := promtool(t, args...)
		kit.Check(t, err == nil, "%v\n%s", err, output)
	}
}

func ruleTests(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("rules/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	return files
}

// options finds the options of a metric from the start to its name, and word the parts of the name: namespace, subsystem and name. The first
// two may be missing.
var (
	options = regexp.MustCompile(`Opts\{\s*(?:(?:Namespace|Subsystem): +[\w."]+,\s*)*Name: +"\w+"`)
	word    = regexp.MustCompile(`"\w+"`)
)

// TestKubeletMetrics finds the kubelet's metrics that rules and dashboard use in the source of the Kubernetes version
// that hack/controlplane pins.
func TestKubeletMetrics(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes")
	list.Dir = "../../hack/controlplane"
	output, err := list.Output()
	dir := regexp.MustCompile(`"Dir": "(.*)"`).FindSubmatch(output)
	if err != nil || dir == nil {
		t.Fatalf("no Dir in %s, error %v", output, err)
	}
	var defined []string
	for _, file := range []string{"cmd/kubelet/app/server.go", "pkg/kubelet/certificate/kubelet.go"} {
		source := strings.ReplaceAll(string(read(t, filepath.Join(string(dir[1]), file))), "metrics.KubeletSubsystem", `"kubelet"`)
		for _, found := range options.FindAllString(source, -1) {
			defined = append(defined, strings.ReplaceAll(strings.Join(word.FindAllString(found, -1), "_"), `"`, ""))
		}
	}
	used := regexp.MustCompile(`\bkubelet_\w+`).FindAllString(string(read(t, plainFile))+string(read(t, dashboardFile)), -1)
	kit.Check(t, len(used) > 0, "none is used")
	for _, name := range used {
		kit.Check(t, slices.Contains(defined, name), "no kubelet has %s; it has %v", name, defined)
	}
}
