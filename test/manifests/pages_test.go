package manifests

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/internal/authorization"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
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
	pages := kit.Must(filepath.Glob(filepath.Join(root, "docs/*/*.md")))(t)
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
	kit.Check(t, found >= 10, "only %d fragments found", found)
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
	kit.Check(t, !slices.Contains(strings.Split(match[0], "\n"), "EOF"), "%s replaces %s", page, match[2])
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
			encoded := kit.Must(yaml.Marshal(content))(t)
			text = string(encoded)
		}
		texts[name] = text
	}
	all := inFolder(t, root, texts)
	for name, loaded := range load(t, all) {
		kit.Check(t, loaded.Signing.Secret == systemNamespace+"/csr-signer" && loaded.MetricsSecure && loaded.MetricsBindAddress == ":8443",
			"%s: %s has lost what the shipped configuration says", page, name)
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

// TestConfigurePage renders the kustomization of docs/how-to/configure.md beside the shipped configuration, and loads the configuration
// of the page.
func TestConfigurePage(t *testing.T) {
	t.Parallel()
	page := string(read(t, filepath.Join(root, "docs/how-to/configure.md")))
	blocks := regexp.MustCompile("(?s)```yaml\n(apiVersion: .*?)```").FindAllStringSubmatch(page, -1)
	kit.Require(t, len(blocks) == 2, "the page has %d whole files", len(blocks))
	all := myCluster(t, blocks[0][1])
	accept(t, all)
	for name, deployment := range typed[appsv1.Deployment](t, all, "Deployment") {
		if got := deployment.Spec.Template.Spec.Containers[0].Image; got != "registry.example.com/csr-controller-manager:dev" {
			t.Errorf("%s has the image %s", name, got)
		}
	}
	if loaded := load(t, all); len(loaded) != 3 || loaded[signer].Signing.Secret != systemNamespace+"/"+signingSecret {
		t.Errorf("%+v", loaded)
	}
	loaded := loadText(t, []byte(blocks[1][1]))
	kit.Check(t, loaded.Approval.KubeletServing.Enabled && loaded.NodeBlockList == systemNamespace+"/csr-node-block-list",
		"loaded %+v", loaded)
}

// myCluster renders a kustomization in a folder like config/my-cluster, with a copy of the shipped configuration.
func myCluster(t *testing.T, text string) objects {
	t.Helper()
	return inFolder(t, root, map[string]string{"kustomization.yaml": text, "config.yaml": shippedConfig(t, root)})
}

func loadText(t *testing.T, text []byte) *config.Configuration {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	kit.Write(t, file, text)
	loaded := kit.Must(config.Load([]string{"--config=" + file}, cel.New))(t)
	return loaded
}

// pageBlock matches a block of code in a page, with its indentation and text.
var pageBlock = regexp.MustCompile("(?ms)^( *)```(?:sh|yaml)\n(.*?)^ *```$")

// withText returns the only block in the pages about rotation that holds marker, without its indentation.
func withText(t *testing.T, marker string) string {
	t.Helper()
	var found []string
	for _, page := range []string{"rotate-a-ca.md", "separate-ca.md"} {
		for _, match := range pageBlock.FindAllStringSubmatch(string(read(t, filepath.Join(root, "docs/how-to", page))), -1) {
			if block := strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n")[1:]; strings.Contains(block, marker) {
				found = append(found, block)
			}
		}
	}
	kit.Require(t, len(found) == 1, "%d blocks with %q", len(found), marker)
	return found[0]
}

// TestRotationPages checks what the DaemonSet writes, and who may do what, after each step that changes config/my-cluster.
func TestRotationPages(t *testing.T) {
	t.Parallel()
	const clients = "--from=/published/ca.crt --to=/kept/client-ca.crt"
	const serving = "--from=/published/kubelet-serving.crt --to=/kept/kubelet-serving-ca.crt"
	const ofServing, file, moved = "- ../rotation/kubelet-serving", "- ../overlays/trust-files/kubelet-serving", "op: remove"
	roles := map[string][]string{
		"Role " + trustFiles + "/csr-trust":                            {rotator},
		"Role " + systemNamespace + "/csr-kubelet-serving-ca":          {signer},
		"Role " + systemNamespace + "/csr-kubelet-serving-ca-rotation": {rotator},
		"ClusterRole /csr-kubelet-serving-ca-rotation":                 {rotator},
	}
	one, two := []string{"ca.crt"}, []string{"ca.crt", "kubelet-serving.crt"}
	for name, test := range map[string]struct{ markers, args, keys []string }{
		"set up":        {nil, []string{clients}, one},
		"serving moves": {[]string{ofServing, file}, []string{clients, serving + " --also=/published/ca.crt"}, two},
		"serving moved": {[]string{ofServing, file, moved}, []string{clients, serving}, two},
		"clients":       {[]string{"kubelet-client.crt"}, []string{clients + " --also=/published/kubelet-client.crt"}, append(one, "kubelet-client.crt")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := folder{}
			files.parse(t, "config.yaml", []byte(withText(t, "settleFor: 90s")))
			for _, marker := range append([]string{"- ../overlays/split/rotation"}, test.markers...) {
				files.parse(t, "kustomization.yaml", []byte(withText(t, marker)))
			}
			all := checkFolder(t, name, files)
			pod := typed[appsv1.DaemonSet](t, all, "DaemonSet")[trustFiles].Spec.Template.Spec
			var args, keys []string
			for _, container := range pod.Containers {
				args = append(args, strings.Join(container.Args[1:], " "))
			}
			for _, item := range pod.Volumes[0].ConfigMap.Items {
				keys = append(keys, item.Key)
			}
			kit.Check(t, cmp.Equal(test.args, args) && cmp.Equal(test.keys, keys), "keys %v, arguments %v", keys, args)
			_, bound := rights(t, all)
			for role, want := range roles {
				if got := bound[role]; !cmp.Equal(want, got) && (got != nil || len(test.args) > 1) {
					t.Errorf("%s: bound to %v, want %s", role, got, want)
				}
			}
		})
	}
}

// TestRotationPagesSigners loads the configuration that gives kubelet-serving a CA of its own.
func TestRotationPagesSigners(t *testing.T) {
	t.Parallel()
	files := folder{}
	files.parse(t, "config.yaml", []byte(withText(t, "settleFor: 90s")))
	delete(files["config.yaml"].(map[string]any), "signing") // the page replaces it
	files.parse(t, "config.yaml", []byte(withText(t, "signing:\n  signers:")))
	data := kit.Must(yaml.Marshal(files["config.yaml"]))(t)
	if loaded := loadText(t, data); !loaded.Rotation.Enabled || len(loaded.Signing.Signers) != 3 {
		t.Errorf("loaded %+v", loaded)
	}
}

// TestRotationPagesAuthorities checks that an API server accepts both authorities of the pages, and the change of the first one.
func TestRotationPagesAuthorities(t *testing.T) {
	applyAll(t, kustomize(t, "crd"))
	var first *unstructured.Unstructured
	for _, marker := range []string{"metadata: {name: kubelet-serving}", "name: cluster\n"} {
		_, after, _ := strings.Cut(withText(t, marker), "<<EOF\n")
		document, _, _ := strings.Cut(after, "\nEOF\n")
		first = kit.Object(t, document)
		kit.Eventually(t, first.GetName(), func(ctx context.Context) error { return admin.Create(ctx, first) }) // once it is served
	}
	_, patch, _ := strings.Cut(withText(t, "kubectl patch signingauthority cluster"), "-p '")
	kit.NoError(t, admin.Patch(t.Context(), first, client.RawPatch(types.MergePatchType, []byte(strings.TrimSuffix(patch, "'\n")))))
	signers, _, err := unstructured.NestedStringSlice(first.Object, "spec", "signers")
	kit.Check(t, !slices.Contains(signers, "kubernetes.io/kubelet-serving") && len(signers) == 2 && err == nil,
		"signers %v, error %v", signers, err)
}

// TestRevocationPage runs what the page tells root to do on a host of kubeadm, in a folder in place of /etc/kubernetes: the file
// for a new host is the one that write-authorization replaces, the flag is changed only if the file is there, and both ways back
// give the old manifest.
func TestRevocationPage(t *testing.T) {
	t.Parallel()
	page := string(read(t, filepath.Join(root, "docs/how-to/revoke-a-credential.md")))
	host := filepath.Join(t.TempDir(), "kubernetes")
	run := func(marker string) error {
		t.Helper()
		var found []string
		for _, match := range regexp.MustCompile("(?ms)^( *)```(?:sh|console)\n(.*?)^ *```$").FindAllStringSubmatch(page, -1) {
			if block := strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n")[1:]; strings.Contains(block, marker) {
				found = append(found, strings.TrimPrefix(block, "# "))
			}
		}
		kit.Require(t, len(found) == 1, "%d blocks with %q", len(found), marker)
		// The value of the flag stays the path on a host.
		text := strings.ReplaceAll(found[0], "=/etc/kubernetes", "=HOST")
		text = strings.ReplaceAll(strings.ReplaceAll(text, "/etc/kubernetes", host), "=HOST", "=/etc/kubernetes")
		return exec.CommandContext(t.Context(), "bash", "-c", text).Run()
	}
	manifest := filepath.Join(host, "manifests", "kube-apiserver.yaml")
	before := "spec:\n  containers:\n  - command:\n    - kube-apiserver\n    - --authorization-mode=Node,RBAC\n    - --client-ca-file=/etc/kubernetes/pki/ca.crt\n"
	after := strings.Replace(before, "mode=Node,RBAC", "config=/etc/kubernetes/pki/csr-authorization/authorization.yaml", 1)
	kit.NoError(t, os.MkdirAll(filepath.Dir(manifest), 0o700))
	kit.Write(t, manifest, []byte(before))
	const change, newHost, back, away = "kube-apiserver.before &&", "install -d", "cp -p /etc/kubernetes/kube-apiserver.before", "sed 's#--authorization-config"
	kit.Check(t, run(change) != nil && string(read(t, manifest)) == before, "the flag is changed without the file")
	kit.NoError(t, run(newHost))
	kit.Equal(t, "the file", string(read(t, filepath.Join(host, "pki/csr-authorization/authorization.yaml"))), authorization.Default)
	for _, way := range []string{back, away} {
		kit.NoError(t, run(change))
		kit.Equal(t, "with the flag", string(read(t, manifest)), after)
		kit.NoError(t, run(way))
		kit.Equal(t, way, string(read(t, manifest)), before)
	}
	kit.Equal(t, "the folder of the kubelet", len(kit.Must(os.ReadDir(filepath.Dir(manifest)))(t)), 1)
}
