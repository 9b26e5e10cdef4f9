package manifests

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// fragment matches lines that a page tells its reader to add to a file of config/my-cluster, and a file that it writes there.
var fragment = regexp.MustCompile("(?ms)^( *)(?:```yaml\n *# config/my-cluster/|cat >config/my-cluster/)([a-z]+\\.yaml)(?: <<EOF)?\n(.*?)^ *(?:```|EOF)$")

// folder holds the files of a folder like config/my-cluster.
type folder map[string]any

// TestPagesChangeOneFolder adds what each page tells its reader to add to a copy of config/example, and checks that the result
// renders, loads, is accepted by the API server, and keeps what the example says. At the end it does so with all pages that do not
// exclude each other, one after the other.
func TestPagesChangeOneFolder(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(filepath.Join(root, "docs/*/*.md"))
	kit.NoError(t, err)
	all, found := example(t), 0
	checkFolder(t, "config/example", all)
	for _, page := range pages {
		own := example(t)
		for _, match := range fragment.FindAllStringSubmatch(string(read(t, page)), -1) {
			found++
			own.add(t, page, match)
			if filepath.Base(page) != "cluster-api.md" && !strings.Contains(page, "tutorials") { // in place of bind-nodes.md
				all.add(t, page, match)
			}
			if match[2] == "config.yaml" {
				checkFolder(t, page, own)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d fragments found", found)
	}
	checkFolder(t, "all pages", all)
}

// example returns the files of config/example.
func example(t *testing.T) folder {
	t.Helper()
	files := folder{}
	for _, name := range []string{"kustomization.yaml", "config.yaml"} {
		files.parse(t, name, read(t, filepath.Join(root, "config", "example", name)))
	}
	return files
}

func (f folder) parse(t *testing.T, name string, data []byte) {
	t.Helper()
	var content map[string]any
	if err := yaml.Unmarshal(data, &content); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, data)
	}
	f[name] = merged(f[name], any(content))
}

// add adds a match of fragment.
func (f folder) add(t *testing.T, page string, match []string) {
	t.Helper()
	lines := strings.Split(match[3], "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], match[1])
	}
	text := strings.Join(lines, "\n")
	if f[match[2]] == nil { // a file of several objects, which nothing is added to
		f[match[2]] = text
		return
	}
	f.parse(t, match[2], []byte(text))
	if slices.Contains(strings.Split(match[0], "\n"), "EOF") {
		t.Errorf("%s replaces %s", page, match[2])
	}
}

// merged returns into with the fields and items of more that it lacks.
func merged(into, more any) any {
	switch more := more.(type) {
	case map[string]any:
		fields, _ := into.(map[string]any)
		if fields == nil {
			fields = map[string]any{}
		}
		for name, value := range more {
			fields[name] = merged(fields[name], value)
		}
		return fields
	case []any:
		items, _ := into.([]any)
		for _, item := range more {
			if !slices.ContainsFunc(items, func(each any) bool { return cmp.Equal(each, item) }) {
				items = append(items, item)
			}
		}
		return items
	default:
		return more
	}
}

// checkFolder renders files in a folder of their own, checks the objects, and returns them.
func checkFolder(t *testing.T, page string, files folder) objects {
	t.Helper()
	texts := map[string]string{}
	for name, content := range files {
		text, isText := content.(string)
		if !isText {
			encoded, err := yaml.Marshal(content)
			kit.NoError(t, err)
			text = string(encoded)
		}
		texts[name] = text
	}
	all := inFolder(t, root, texts)
	for name, loaded := range load(t, all) {
		if loaded.Signing.Secret != systemNamespace+"/csr-signer" || !loaded.MetricsSecure || loaded.MetricsBindAddress != ":8443" {
			t.Errorf("%s: %s has lost what the shipped configuration says", page, name)
		}
	}
	if bound := subjects(t, all); slices.Contains(bound, "csr-controller-manager") {
		t.Errorf("%s: a role is bound to %v", page, bound)
	}
	accept(t, all)
	return all
}

// TestApproverOnlyPage compares the configuration that the page shows with the file.
func TestApproverOnlyPage(t *testing.T) {
	t.Parallel()
	file := read(t, filepath.Join(root, "config", approverOnly, "config.yaml"))
	shown := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAll(file, nil)
	if !bytes.Contains(read(t, filepath.Join(root, "docs/how-to/approver-only.md")), slices.Concat([]byte("```yaml\n"), shown, []byte("```\n"))) {
		t.Errorf("the page does not show\n%s", shown)
	}
}
