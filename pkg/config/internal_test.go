package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// FuzzParse checks that a file that a manager loads can be written again.
func FuzzParse(f *testing.F) {
	const header = "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"
	for _, body := range []string{
		"signing: {secret: ns/ca}\n",
		"controllers: ['-csrcleaner', '*']\nsigning: {certFile: a, keyFile: b}\n",
		"signing: {secret: ns/ca, signers: [{name: example.com/a, duration: 1h, usages: [client auth], forbiddenSubjects: []}]}\ncleaning: {retention: {pending: -1s}}\n",
		"signing: {secret: a/b}\napproval: {inventory: {sources: [{webhook: {url: 'https://inventory/nodes?token=secret', caFile: ca, timeout: 1s}}]}}\n",
		"signing: {secret: a/b}\napproval: {kubeletServing: {enabled: true}, inventory: {sources: [{static: {rows: [{name: a, addresses: [10.0.0.1]}]}}, {node: {}}]}}\n",
		"signing: {secret: a/b}\ndryRun: ['*']\nselfCheck: {interval: 0s}\nrotation: {enabled: true}\n",
	} {
		f.Add([]byte(header + body))
	}
	files, err := filepath.Glob("../../config/manager/config/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d configuration files, error %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := Default()
		if c.parse(data) != nil || len(c.validate(true)) > 0 {
			return
		}
		if _, err := yaml.Marshal(c); err != nil {
			t.Error(err)
		}
	})
}

// TestEveryFlagIsDescribed checks that each flag has a description: that of the field with its tag, or one of its own.
func TestEveryFlagIsDescribed(t *testing.T) {
	t.Parallel()
	NewFlags(Default()).VisitAll(func(flag *pflag.Flag) {
		if !strings.HasSuffix(flag.Usage, ".") || strings.ContainsAny(flag.Usage, "`[") {
			t.Errorf("--%s is described as %q", flag.Name, flag.Usage)
		}
	})
}

func TestDescription(t *testing.T) {
	t.Parallel()
	for comment, want := range map[string]string{
		"Path is a file, see [the page](x.md). ": "A file, see [the page](x.md).",
		"Path lists `files`. ":                   "Lists `files`.",
		"":                                       "",
	} {
		if got := description(map[string]string{"Audit.Path": comment}, "Audit", "Path"); got != want {
			t.Errorf("%q became %q, want %q", comment, got, want)
		}
	}
	flag := func(field string) string { return map[string]string{"metricsSecure": "--metrics-secure"}[field] }
	if got, want := plain("See [the page](x.md) of `files` and `metricsSecure`.", flag), "See the page of files and --metrics-secure."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
