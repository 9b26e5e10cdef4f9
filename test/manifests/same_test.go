package manifests

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestSame compares the chart with kustomize, object by object. Three differences are needed. Helm creates the
// Namespace without a manifest. Helm has its own labels. A changed configuration rolls out by the name of the
// ConfigMap or by an annotation.
func TestSame(t *testing.T) {
	t.Parallel()
	for folder, values := range map[string][]string{
		"default":                nil,
		"overlays/split":         {"--set=split=true"},
		"overlays/control-plane": {"--set=controlPlane.enabled=true"},
	} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			want, got := kustomize(t, folder), helm(t, values...)
			if want["Namespace /"+systemNamespace] == nil {
				t.Error("kustomize has no Namespace")
			}
			delete(want, "Namespace /"+systemNamespace)
			if diff := cmp.Diff(plain(t, want), plain(t, got)); diff != "" {
				t.Errorf("chart with %v (-kustomize +helm):\n%s", values, diff)
			}
		})
	}
}

// TestServiceMonitor compares the only object that is optional in both.
func TestServiceMonitor(t *testing.T) {
	t.Parallel()
	const name = "ServiceMonitor " + systemNamespace + "/csr-controller-manager"
	without, with := helm(t), helm(t, "--set=serviceMonitor.enabled=true")
	if len(with) != len(without)+1 || without[name] != nil || with[name] == nil {
		t.Fatalf("%d objects without it, %d with it", len(without), len(with))
	}
	want := kustomize(t, "prometheus/servicemonitor")
	if diff := cmp.Diff(plain(t, want), plain(t, objects{name: with[name]})); diff != "" {
		t.Errorf("(-kustomize +helm):\n%s", diff)
	}
}

// TestServiceMonitorWithSecret checks the way to scrape that only the chart has.
func TestServiceMonitorWithSecret(t *testing.T) {
	t.Parallel()
	all := helm(t, "--set=serviceMonitor.enabled=true,serviceMonitor.tokenSecret=scraper")
	monitor := all["ServiceMonitor "+systemNamespace+"/csr-controller-manager"]
	endpoints, _, err := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
	if err != nil || len(endpoints) != 1 {
		t.Fatalf("endpoints %v, error %v", endpoints, err)
	}
	got := endpoints[0].(map[string]any)
	want := map[string]any{"credentials": map[string]any{"name": "scraper", "key": "token"}}
	if diff := cmp.Diff(want, got["authorization"]); diff != "" || got["bearerTokenFile"] != nil {
		t.Errorf("token file %v, authorization (-want +got):\n%s", got["bearerTokenFile"], diff)
	}
}

// plain returns the parts that must be the same.
func plain(t *testing.T, all objects) map[string]any {
	t.Helper()
	found := map[string]any{}
	for name, obj := range all {
		obj = obj.DeepCopy()
		unlabel(obj)
		switch obj.GetKind() {
		case "ConfigMap":
			name = "ConfigMap"
			obj.SetName(unhash(obj.GetName()))
			readConfig(t, obj)
		case "Deployment":
			config, ok := configMapOf(obj)
			if !ok {
				t.Fatalf("%s mounts no ConfigMap", name)
			}
			config["name"] = unhash(config["name"].(string))
			unstructured.RemoveNestedField(obj.Object, "spec", "template", "metadata", "annotations", "checksum/config")
		}
		found[name] = obj.Object
	}
	return found
}

// unhash removes the hash that kustomize appends to the name of the ConfigMap.
func unhash(name string) string {
	const ours = "csr-controller-manager-config"
	if strings.HasPrefix(name, ours+"-") {
		return ours
	}
	return name
}

func unlabel(obj *unstructured.Unstructured) {
	labels := obj.GetLabels()
	delete(labels, "app.kubernetes.io/managed-by")
	delete(labels, "helm.sh/chart")
	obj.SetLabels(labels)
}

// readConfig replaces the text of the configuration by its parsed content.
func readConfig(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	text, _, _ := unstructured.NestedString(obj.Object, "data", "config.yaml")
	var content map[string]any
	if err := yaml.Unmarshal([]byte(text), &content); err != nil || len(content) == 0 {
		t.Fatalf("config.yaml: %v: %q", err, text)
	}
	obj.Object["data"] = content
}

// configMapOf returns the volume source that a Deployment mounts as its configuration.
func configMapOf(deployment *unstructured.Unstructured) (map[string]any, bool) {
	volumes, _, _ := unstructured.NestedFieldNoCopy(deployment.Object, "spec", "template", "spec", "volumes")
	for _, volume := range volumes.([]any) {
		if source, ok := volume.(map[string]any)["configMap"].(map[string]any); ok {
			return source, true
		}
	}
	return nil, false
}
