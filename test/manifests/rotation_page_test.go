package manifests

import (
	"context"
	"maps"
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

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

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
	if len(found) != 1 {
		t.Fatalf("%d blocks with %q", len(found), marker)
	}
	return found[0]
}

// authorityOf returns the SigningAuthority between <<EOF and EOF in the only block that holds marker.
func authorityOf(t *testing.T, marker string) *unstructured.Unstructured {
	t.Helper()
	_, after, _ := strings.Cut(withText(t, marker), "<<EOF\n")
	document, _, _ := strings.Cut(after, "\nEOF\n")
	for _, obj := range parse(t, []byte(document)) {
		return obj
	}
	t.Fatalf("no object with %q", marker)
	return nil
}

// withBlocks returns files of config/my-cluster with the blocks that hold the markers.
func withBlocks(t *testing.T, markers ...string) folder {
	t.Helper()
	files := folder{}
	files.parse(t, "config.yaml", []byte(withText(t, "settleFor: 90s")))
	for _, marker := range append([]string{"- ../overlays/split/rotation"}, markers...) {
		files.parse(t, "kustomization.yaml", []byte(withText(t, marker)))
	}
	return files
}

// TestRotationPages checks what the DaemonSet writes, and who may do what, after each step that changes config/my-cluster.
func TestRotationPages(t *testing.T) {
	t.Parallel()
	clients := []string{"--from=/published/ca.crt", "--to=/kept/client-ca.crt"}
	serving := []string{"--from=/published/kubelet-serving.crt", "--to=/kept/kubelet-serving-ca.crt"}
	const rights, file, moved = "- ../rotation/kubelet-serving", "- ../overlays/trust-files/kubelet-serving", "op: remove"
	for name, test := range map[string]struct {
		files folder
		args  [][]string
		keys  []string
	}{
		"set up":        {withBlocks(t), [][]string{clients}, []string{"ca.crt"}},
		"serving moves": {withBlocks(t, rights, file), [][]string{clients, append(slices.Clone(serving), "--also=/published/ca.crt")}, []string{"ca.crt", "kubelet-serving.crt"}},
		"serving moved": {withBlocks(t, rights, file, moved), [][]string{clients, serving}, []string{"ca.crt", "kubelet-serving.crt"}},
		"clients":       {withBlocks(t, "kubelet-client.crt"), [][]string{append(slices.Clone(clients), "--also=/published/kubelet-client.crt")}, []string{"ca.crt", "kubelet-client.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := checkFolder(t, name, test.files)
			pod := typed[appsv1.DaemonSet](t, all, "DaemonSet")[trustFiles].Spec.Template.Spec
			var args [][]string
			for _, container := range pod.Containers {
				args = append(args, container.Args[1:])
			}
			var keys []string
			for _, item := range pod.Volumes[0].ConfigMap.Items {
				keys = append(keys, item.Key)
			}
			if !cmp.Equal(test.args, args) || !cmp.Equal(test.keys, keys) {
				t.Errorf("keys %v, arguments %v", keys, args)
			}
			for name, want := range map[string]string{
				"RoleBinding " + trustFiles + "/csr-trust":                            "csr-rotation",
				"RoleBinding " + systemNamespace + "/csr-kubelet-serving-ca":          "csr-signer",
				"RoleBinding " + systemNamespace + "/csr-kubelet-serving-ca-rotation": "csr-rotation",
				"ClusterRoleBinding /csr-kubelet-serving-ca-rotation":                 "csr-rotation",
			} {
				if obj := all[name]; obj == nil && strings.Contains(name, "kubelet-serving") && len(test.args) == 1 {
					continue
				}
				if got := subjects(t, objects{name: all[name]}); !cmp.Equal([]string{want}, got) {
					t.Errorf("%s: bound to %v, want %s", name, got, want)
				}
			}
		})
	}
}

// TestRotationPagesSigners loads the configuration that gives kubelet-serving a CA of its own.
func TestRotationPagesSigners(t *testing.T) {
	t.Parallel()
	content := withBlocks(t)["config.yaml"].(map[string]any)
	var signing map[string]any
	kit.NoError(t, yaml.UnmarshalStrict([]byte(withText(t, "signing:\n  signers:")), &signing))
	maps.Copy(content, signing)
	data, err := yaml.Marshal(content)
	kit.NoError(t, err)
	file := filepath.Join(t.TempDir(), "config.yaml")
	kit.Write(t, file, data)
	loaded, err := config.Load([]string{"--config=" + file})
	if err != nil || !loaded.Rotation.Enabled || len(loaded.Signing.Signers) != 3 {
		t.Errorf("error %v, loaded %+v", err, loaded)
	}
}

// TestRotationPagesAuthorities checks that an API server accepts both authorities of the pages, and the change of the first one.
func TestRotationPagesAuthorities(t *testing.T) {
	applyAll(t, kustomize(t, "crd"))
	first, second := authorityOf(t, "name: cluster\n"), authorityOf(t, "metadata: {name: kubelet-serving}")
	for _, obj := range []*unstructured.Unstructured{first, second} {
		kit.Eventually(t, obj.GetName(), func(ctx context.Context) error { return admin.Create(ctx, obj) }) // once it is served
	}
	_, patch, _ := strings.Cut(withText(t, "kubectl patch signingauthority cluster"), "-p '")
	kit.NoError(t, admin.Patch(t.Context(), first, client.RawPatch(types.MergePatchType, []byte(strings.TrimSuffix(patch, "'\n")))))
	signers, _, err := unstructured.NestedStringSlice(first.Object, "spec", "signers")
	if slices.Contains(signers, "kubernetes.io/kubelet-serving") || len(signers) != 2 || err != nil {
		t.Errorf("signers %v, error %v", signers, err)
	}
}
