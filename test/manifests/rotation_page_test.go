package manifests

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// pageBlock matches a block of code in a page, with its indentation and text.
var pageBlock = regexp.MustCompile("(?ms)^( *)```(?:sh|yaml)\n(.*?)^ *```$")

// rotationPage returns the blocks of docs/how-to/rotate-a-ca.md, without their indentation.
func rotationPage(t *testing.T) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/how-to/rotate-a-ca.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range pageBlock.FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n")[1:])
	}
	return blocks
}

// withDocument returns the text between <<EOF and EOF in the only block that holds marker.
func withDocument(t *testing.T, marker string) string {
	t.Helper()
	block := withText(t, marker)
	_, after, _ := strings.Cut(block, "<<EOF\n")
	document, _, found := strings.Cut(after, "\nEOF\n")
	if !found {
		t.Fatalf("no document in\n%s", block)
	}
	return document
}

// withText returns the only block that holds marker.
func withText(t *testing.T, marker string) string {
	t.Helper()
	blocks := slices.DeleteFunc(rotationPage(t), func(block string) bool { return !strings.Contains(block, marker) })
	if len(blocks) != 1 {
		t.Fatalf("%d blocks with %q", len(blocks), marker)
	}
	return blocks[0]
}

// rendered renders a kustomization that lies in a folder of config, with its config.yaml.
func rendered(t *testing.T, kustomization map[string]any, configuration ...map[string]any) objects {
	t.Helper()
	dir := t.TempDir()
	absolute, err := filepath.Abs(filepath.Join(root, "config"))
	if err != nil {
		t.Fatal(err)
	}
	above, err := filepath.Rel(dir, absolute)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]map[string]any{"kustomization.yaml": kustomization}
	for _, content := range configuration {
		files["config.yaml"] = content
	}
	for name, content := range files {
		data, err := yaml.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "- ../", "- "+above+"/")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return parse(t, run(t, filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "kustomize", dir))
}

// inYAML parses text.
func inYAML[T any](t *testing.T, text string) (parsed T) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &parsed); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return parsed
}

// TestRotationPageTrustFiles renders the kustomization of config/my-trust-files after each step that changes it.
func TestRotationPageTrustFiles(t *testing.T) {
	t.Parallel()
	const fromClient, toClient = "--from=/published/ca.crt", "--to=/kept/client-ca.crt"
	const fromServing, toServing = "--from=/published/kubelet-serving.crt", "--to=/kept/kubelet-serving-ca.crt"
	setUp := inYAML[map[string]any](t, withDocument(t, "cat >config/my-trust-files/"))
	moving := maps.Clone(setUp)
	maps.Copy(moving, inYAML[map[string]any](t, withText(t, "- ../overlays/trust-files/kubelet-serving")))
	moved := maps.Clone(moving)
	moved["patches"] = slices.Concat(setUp["patches"].([]any), inYAML[[]any](t, withText(t, "op: remove")))
	clients := maps.Clone(setUp)
	clients["patches"] = slices.Concat(setUp["patches"].([]any), inYAML[[]any](t, withText(t, "kubelet-client.crt")))
	for name, test := range map[string]struct {
		kustomization map[string]any
		args          [][]string
		keys          []string
	}{
		"set up":        {setUp, [][]string{{fromClient, toClient}}, []string{"ca.crt"}},
		"serving moves": {moving, [][]string{{fromClient, toClient}, {fromServing, toServing, "--also=/published/ca.crt"}}, []string{"ca.crt", "kubelet-serving.crt"}},
		"serving moved": {moved, [][]string{{fromClient, toClient}, {fromServing, toServing}}, []string{"ca.crt", "kubelet-serving.crt"}},
		"clients":       {clients, [][]string{{fromClient, toClient, "--also=/published/kubelet-client.crt"}}, []string{"ca.crt", "kubelet-client.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := rendered(t, test.kustomization)
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
			if diff := cmp.Diff([]string{"csr-rotation"}, subjects(t, objectsOf(all, "RoleBinding"))); diff != "" {
				t.Errorf("who publishes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRotationPageInstallation renders config/my-cluster of the page, with what it adds later, and loads both configurations.
func TestRotationPageInstallation(t *testing.T) {
	t.Parallel()
	folder := inYAML[map[string]any](t, withText(t, "- ../overlays/split/rotation"))
	content := inYAML[map[string]any](t, withText(t, "settleFor: 90s"))
	more := inYAML[map[string]any](t, withText(t, "- ../rotation/kubelet-serving"))
	folder["components"] = slices.Concat(folder["components"].([]any), more["components"].([]any))
	folder["patches"] = more["patches"]
	all := rendered(t, folder, content)
	accept(t, all)
	for name, loaded := range load(t, all) {
		if !loaded.Rotation.Enabled || loaded.Signing.Secret != systemNamespace+"/csr-signer" || !loaded.MetricsSecure {
			t.Errorf("%s: %+v", name, loaded)
		}
	}
	for name, want := range map[string]string{
		"RoleBinding " + systemNamespace + "/csr-kubelet-serving-ca":          "csr-signer",
		"RoleBinding " + systemNamespace + "/csr-kubelet-serving-ca-rotation": "csr-rotation",
		"ClusterRoleBinding /csr-kubelet-serving-ca-rotation":                 "csr-rotation",
	} {
		if got := subjects(t, objects{name: all[name]}); !cmp.Equal([]string{want}, got) {
			t.Errorf("%s: bound to %v, want %s", name, got, want)
		}
	}
	if bound := subjects(t, objectsOf(all, "RoleBinding", "ClusterRoleBinding")); slices.Contains(bound, "csr-controller-manager") {
		t.Errorf("a role is bound to %v", bound)
	}
	maps.Copy(content, inYAML[map[string]any](t, withText(t, "signing:\n  signers:")))
	data, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load([]string{"--config=" + file})
	if err != nil || !loaded.Rotation.Enabled || len(loaded.Signing.Signers) != 3 {
		t.Errorf("error %v, loaded %+v", err, loaded)
	}
}

// TestRotationPageAuthorities checks that an API server accepts both authorities of the page, and the change of the first one.
func TestRotationPageAuthorities(t *testing.T) {
	crds := kustomize(t, "crd")
	for name, obj := range crds {
		if err := admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"cluster", "kubelet-serving"} {
		for _, obj := range parse(t, []byte(withDocument(t, "metadata: {name: "+name+"}"))) {
			err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
				err := admin.Create(ctx, obj)
				if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) { // it is not served yet
					return false, nil
				}
				return true, err
			})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	_, patch, _ := strings.Cut(withText(t, "kubectl patch signingauthority cluster"), "-p '")
	cluster := parse(t, []byte(withDocument(t, "metadata: {name: cluster}")))["SigningAuthority /cluster"]
	if err := admin.Patch(t.Context(), cluster, client.RawPatch(types.MergePatchType, []byte(strings.TrimSuffix(patch, "'\n")))); err != nil {
		t.Fatal(err)
	}
	signers, _, err := unstructured.NestedStringSlice(cluster.Object, "spec", "signers")
	if slices.Contains(signers, "kubernetes.io/kubelet-serving") || len(signers) != 2 || err != nil {
		t.Errorf("signers %v, error %v", signers, err)
	}
}
