package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pageFile matches a file in a how-to page that the reader writes, with its indentation, name and text.
var pageFile = regexp.MustCompile(`(?ms)^( *)cat >my-cluster/([a-z]+\.yaml) <<EOF\n(.*?)^ *EOF$`)

// TestKustomizationsOfPages renders each kustomization that a page tells its reader to write beside config/.
// It loads the configuration, which must keep the content of the shipped one.
func TestKustomizationsOfPages(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(filepath.Join(root, "docs/*/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages {
		for _, files := range kustomizationsOf(t, page) {
			found++
			all := renderPage(t, files)
			for name, loaded := range load(t, all) {
				if loaded.Signing.Secret != systemNamespace+"/csr-signer" || !loaded.MetricsSecure || loaded.MetricsBindAddress != ":8443" {
					t.Errorf("%s: %s has lost what the shipped configuration says", page, name)
				}
			}
			if bound := subjects(t, objectsOf(all, "RoleBinding", "ClusterRoleBinding")); slices.Contains(bound, "csr-controller-manager") {
				t.Errorf("%s: a role is bound to %v", page, bound)
			}
			accept(t, all)
		}
	}
	if found < 5 {
		t.Errorf("only %d kustomizations found", found)
	}
}

// kustomizationsOf returns the files of each kustomization of a page, by name.
func kustomizationsOf(t *testing.T, page string) (all []map[string]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range pageFile.FindAllStringSubmatch(string(text), -1) {
		lines := strings.Split(match[3], "\n")
		for i := range lines {
			lines[i] = strings.TrimPrefix(lines[i], match[1])
		}
		if match[2] == "kustomization.yaml" {
			all = append(all, map[string]string{})
		}
		if len(all) == 0 {
			t.Fatalf("%s: %s before any kustomization.yaml", page, match[2])
		}
		all[len(all)-1][match[2]] = strings.Join(lines, "\n")
	}
	return all
}

// renderPage renders the files of a kustomization in a folder beside config/.
func renderPage(t *testing.T, files map[string]string) objects {
	t.Helper()
	dir := t.TempDir()
	absolute, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	above, err := filepath.Rel(dir, absolute)
	if err != nil {
		t.Fatal(err)
	}
	filled := strings.NewReplacer("- ../config/", "- "+above+"/config/", "$SERVICE_CIDRS", `["10.96.0.0/12"]`)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(filled.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return parse(t, run(t, filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "kustomize", dir))
}

// objectsOf returns the objects of some kinds.
func objectsOf(all objects, kinds ...string) objects {
	some := objects{}
	for name, obj := range all {
		if slices.Contains(kinds, obj.GetKind()) {
			some[name] = obj
		}
	}
	return some
}

// splitComponents are the ServiceAccounts of config/overlays/split to which each component binds its roles.
var splitComponents = map[string][]string{
	serving: {approver}, identity: {approver}, blocked: {approver, signer},
}

// TestSplitComponents compares each component for config/overlays/split with the one for config/default. Only the
// subjects may differ.
func TestSplitComponents(t *testing.T) {
	t.Parallel()
	for name, want := range splitComponents {
		common, own := kustomize(t, name), kustomize(t, "overlays/split/"+name)
		if got := subjects(t, own); !cmp.Equal(want, got) {
			t.Errorf("%s: bound to %v, want %v", name, got, want)
		}
		unbind(common)
		unbind(own)
		if diff := cmp.Diff(unlabelled(common), unlabelled(own)); diff != "" {
			t.Errorf("%s (-default +split):\n%s", name, diff)
		}
	}
	all := overlay(t, "overlays/split", "overlays/split/"+dryRun)
	if got := subjects(t, objects{"": all["RoleBinding default/csr-cleaner"]}); !cmp.Equal([]string{cleaner}, got) {
		t.Errorf("%s: Events of the cleaner are for %v", dryRun, got)
	}
}
