package manifests

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	// splitRotation is config/overlays/split with the rotation component.
	splitRotation = "../test/manifests/testdata/split-rotation"
	rotated       = "--set=config.rotation.enabled=true"
)

// TestSame compares the chart with kustomize, object by object. Three differences are needed. Helm creates the
// Namespace without a manifest. Helm has its own labels. A changed configuration rolls out by the name of the
// ConfigMap or by an annotation.
func TestSame(t *testing.T) {
	t.Parallel()
	for folder, values := range map[string]string{
		"default": "split=false", "overlays/split": "split=true", "overlays/control-plane": "controlPlane.enabled=true",
		splitRotation: "split=true,config.rotation.enabled=true",
	} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			want := kustomize(t, folder)
			if want["Namespace /"+systemNamespace] == nil {
				t.Error("kustomize has no Namespace")
			}
			delete(want, "Namespace /"+systemNamespace)
			same(t, want, helm(t, "--set="+values))
		})
	}
	for folder, value := range map[string]string{ // what an option of the chart adds
		"prometheus/servicemonitor": "serviceMonitor.enabled=true", "request-limits": "requestLimitsPolicy.enabled=true", "rotation": "config.rotation.enabled=true",
	} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			same(t, kustomize(t, folder), added(helm(t), helm(t, "--set="+value)))
		})
	}
}

// same compares objects of kustomize with those of the chart. The chart alone labels the objects of components.
func same(t *testing.T, want, got objects) {
	t.Helper()
	for name, obj := range got {
		ofComponent := want[name] != nil && want[name].GetLabels()["app.kubernetes.io/name"] == ""
		labels := obj.GetLabels()
		maps.DeleteFunc(labels, func(label, _ string) bool {
			return label == "app.kubernetes.io/managed-by" || label == "helm.sh/chart" || ofComponent && strings.HasPrefix(label, "app.kubernetes.io/")
		})
		if len(labels) == 0 {
			labels = nil
		}
		obj.SetLabels(labels)
	}
	if diff := cmp.Diff(plain(t, want), plain(t, got)); diff != "" {
		t.Errorf("(-kustomize +helm):\n%s", diff)
	}
}

// added returns the objects in with that are not in without.
func added(without, with objects) objects {
	maps.DeleteFunc(with, func(name string, _ *unstructured.Unstructured) bool { return without[name] != nil })
	return with
}

// plain returns the parts that must be the same.
func plain(t *testing.T, all objects) map[string]any {
	t.Helper()
	found := map[string]any{}
	for name, obj := range all {
		switch obj.GetKind() {
		case "ConfigMap":
			name = "ConfigMap"
			obj.SetName(unhash(obj.GetName()))
			text, _, _ := unstructured.NestedString(obj.Object, "data", "config.yaml")
			var content map[string]any
			if err := yaml.Unmarshal([]byte(text), &content); err != nil || len(content) == 0 {
				t.Fatalf("config.yaml: %v: %q", err, text)
			}
			obj.Object["data"] = content
		case "Deployment":
			volumes, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "spec", "template", "spec", "volumes")
			config, ok := volumes.([]any)[0].(map[string]any)["configMap"].(map[string]any)
			if !ok {
				t.Fatalf("%s mounts no ConfigMap first", name)
			}
			config["name"] = unhash(config["name"].(string))
			unstructured.RemoveNestedField(obj.Object, "spec", "template", "metadata", "annotations", "checksum/config")
		case "CustomResourceDefinition": // TestHelmRelease checks that an uninstall keeps it
			unstructured.RemoveNestedField(obj.Object, "metadata", "annotations", "helm.sh/resource-policy")
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

// TestShareInChart compares the chart's objects with those of config/priority-and-fairness, which name all
// identities.
func TestShareInChart(t *testing.T) {
	t.Parallel()
	flow := func(all objects) *flowcontrolv1.FlowSchemaSpec {
		return &typed[flowcontrolv1.FlowSchema](t, all, "FlowSchema")["csr-controller-manager"].Spec
	}
	named := func(schema *flowcontrolv1.FlowSchemaSpec) (names []string) {
		for _, subject := range schema.Rules[0].Subjects {
			names = append(names, subject.ServiceAccount.Name)
		}
		return names
	}
	var byCharts []string
	for _, values := range []string{"--set=split=false", "--set=split=true,config.rotation.enabled=true"} {
		want, got := kustomize(t, "priority-and-fairness"), added(helm(t, values), helm(t, values, "--set=priorityAndFairness.enabled=true"))
		mine, theirs := flow(got), flow(want)
		byCharts = append(byCharts, named(mine)...)
		mine.Rules[0].Subjects = theirs.Rules[0].Subjects
		if diff := cmp.Diff(theirs, mine); diff != "" {
			t.Errorf("%s (-kustomize +helm):\n%s", values, diff)
		}
		level := func(all objects) any {
			return typed[flowcontrolv1.PriorityLevelConfiguration](t, all, "PriorityLevelConfiguration")["csr-controller-manager"].Spec
		}
		if diff := cmp.Diff(level(want), level(got)); diff != "" || len(got) != 2 {
			t.Errorf("%s: %d objects (-kustomize +helm):\n%s", values, len(got), diff)
		}
	}
	for _, name := range named(flow(kustomize(t, "priority-and-fairness"))) {
		if !slices.Contains(byCharts, name) {
			t.Errorf("config/priority-and-fairness names %s, which no chart does", name)
		}
	}
}
