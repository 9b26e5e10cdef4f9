package manifests

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestChartRefuses renders the chart with wrong values. Helm reports all violations of the schema at once, so values that violate it at
// different places share a run. The values of the last two runs are refused by a template, which runs only with valid values.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for _, violations := range []map[string]string{
		{
			"replica=3":                                     "'replica' not allowed",
			"image.name=x":                                  "at '/image': additional properties 'name' not allowed",
			"replicas=two":                                  "at '/replicas': got string, want integer",
			"image.pullPolicy=Sometimes":                    "at '/image/pullPolicy'",
			"image.tag=a/b":                                 "at '/image/tag': 'a/b' does not match pattern",
			"image.digest=sha256:1":                         "at '/image/digest'",
			"split=yes":                                     "at '/split': got string, want boolean",
			"controlPlane.maxUnavailable=0":                 "at '/controlPlane/maxUnavailable': minimum: got 0, want 1",
			"ports.metrics=70000":                           "at '/ports/metrics': maximum: got 70,000, want 65,535",
			"networkPolicy.apiServerPorts=[]":               "at '/networkPolicy/apiServerPorts'",
			"extraArgs={run}":                               "at '/extraArgs/0'",
			"config.verbose=1":                              "at '/config': additional properties 'verbose' not allowed",
			"config.leaderElection.resourceName=x":          "at '/config/leaderElection': additional properties 'resourceName' not allowed",
			"config.signing.duration=1d":                    "at '/config/signing/duration': '1d' does not match pattern",
			"config.approval.denial=Always":                 "at '/config/approval/denial'",
			"config.approval.nodeClient.inventory=machines": "at '/config/approval/nodeClient/inventory'",
			"config.approval.inventory.sources[0].static.configMap=a/b,config.approval.inventory.sources[0].machine.kind=M": "at '/config/approval/inventory/sources/0': maxProperties: got 2, want 1",
			"config.approval.limit.burst=-1":     "at '/config/approval/limit/burst': minimum: got -1, want 0",
			"config.signing.secret=ca":           "at '/config/signing/secret'",
			"config.signing.signers[0].name=web": "at '/config/signing/signers/0/name'",
		},
		{
			"replicas=-1":                                     "at '/replicas': minimum: got -1, want 0",
			"controlPlane.maxUnavailable=all":                 "at '/controlPlane/maxUnavailable': 'all' does not match pattern",
			"config.metricsBindAddress=:1":                    "at '/config': additional properties 'metricsBindAddress' not allowed",
			"config.approval.inventory.sources[0].dns.zone=a": "additional properties 'dns' not allowed",
		},
		{
			"config.metricsSecure=false":                                "at '/config': additional properties 'metricsSecure' not allowed",
			"config.approval.inventory.sources[0].webhook.url=http://a": "at '/config/approval/inventory/sources/0/webhook/url'",
		},
		{"split=true,controlPlane.enabled=true": "split and controlPlane.enabled: the three Deployments would want the same ports"},
		{"config.signing.secret=kube-system/ca": "Secret kube-system/ca: the chart gives no rights outside of its namespace, csr-controller-manager-system"},
	} {
		var flags []string
		for set := range violations {
			if strings.HasSuffix(set, "=[]") {
				flags = append(flags, "--set-json="+set)
			} else {
				flags = append(flags, "--set="+set)
			}
		}
		text, err := output(helmCommand(t, flags...)...)
		if err == nil {
			t.Errorf("%q: accepted:\n%s", flags, text)
			continue
		}
		for set, want := range violations {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: want %q in:\n%v", set, want, err)
			}
		}
	}
}

// ofTheChart are the fields of the configuration that the chart sets itself.
var ofTheChart = []string{
	"apiVersion", "kind", "kubeconfig", "metricsBindAddress", "metricsSecure", "healthProbeBindAddress",
	"leaderElection.resourceName", "leaderElection.resourceNamespace",
}

// TestSchemaKnowsTheConfiguration compares the schema with the Go type, field by field.
func TestSchemaKnowsTheConfiguration(t *testing.T) {
	t.Parallel()
	var schema struct{ Definitions map[string]any }
	kit.NoError(t, json.Unmarshal(read(t, filepath.Join(root, chart, "values.schema.json")), &schema))
	var want, got []string
	fields(reflect.TypeFor[config.Configuration](), "", &want)
	properties(schema.Definitions, schema.Definitions["config"], "", &got)
	want = slices.DeleteFunc(want, func(field string) bool { return slices.Contains(ofTheChart, field) })
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-pkg/config +schema):\n%s", diff)
	}
}

// fields collects the paths of the JSON fields below kind that hold no struct of this module.
func fields(kind reflect.Type, path string, into *[]string) {
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
		kind = kind.Elem()
	}
	if kind.Kind() != reflect.Struct || kind.Name() == "Duration" {
		*into = append(*into, strings.TrimPrefix(path, "."))
		return
	}
	for field := range kind.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if options == "inline" {
			fields(field.Type, path, into)
		} else {
			fields(field.Type, path+"."+name, into)
		}
	}
}

// properties collects the same paths in a schema.
func properties(definitions map[string]any, schema any, path string, into *[]string) {
	node := schema.(map[string]any)
	if ref, ok := node["$ref"].(string); ok {
		node = definitions[strings.TrimPrefix(ref, "#/definitions/")].(map[string]any)
	}
	if items, ok := node["items"]; ok {
		properties(definitions, items, path, into)
		return
	}
	below, ok := node["properties"].(map[string]any)
	if !ok {
		*into = append(*into, strings.TrimPrefix(path, "."))
		return
	}
	for name, each := range below {
		properties(definitions, each, path+"."+name, into)
	}
}

// TestChartOptions checks values without an overlay.
func TestChartOptions(t *testing.T) {
	t.Parallel()
	values := filepath.Join(t.TempDir(), "values.yaml")
	const text = `
image: {repository: example.com/csr, digest: "sha256:` + digest + `", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
replicas: 1
priorityClassName: mine
nodeSelector: {disk: fast}
tolerations: [{key: mine, operator: Exists}]
podAnnotations: {a: b}
ports: {metrics: 9443, probes: 9081}
podDisruptionBudget: {enabled: false}
networkPolicy: {enabled: false}
extraArgs: [-v=1]
extraVolumes: [{name: audit, hostPath: {path: /var/log/csr}}]
extraVolumeMounts: [{name: audit, mountPath: /var/log/csr}]
config:
  verbosity: 1
  audit: {path: /var/log/csr/audit.log}
  signing:
    signers:
    - {name: example.com/web, secret: csr-controller-manager-system/web-ca, usages: [server auth]}
`
	kit.Write(t, values, []byte(text))
	all := helm(t, "--values", values)
	pod := typed[appsv1.Deployment](t, all, "Deployment")["csr-controller-manager"].Spec.Template
	container := pod.Spec.Containers[0]
	secret := typed[rbacv1.Role](t, all, "Role")["csr-signing-secret"]
	custom := typed[rbacv1.ClusterRole](t, all, "ClusterRole")["csr-custom-signers"]
	for what, pair := range map[string][2]any{
		"image":                {container.Image, "example.com/csr@sha256:" + digest},
		"pull secret":          {pod.Spec.ImagePullSecrets[0].Name, "pull"},
		"priority class":       {pod.Spec.PriorityClassName, "mine"},
		"node selector":        {pod.Spec.NodeSelector, map[string]string{"disk": "fast"}},
		"toleration":           {pod.Spec.Tolerations[len(pod.Spec.Tolerations)-1].Key, "mine"},
		"annotation":           {pod.Annotations["a"], "b"},
		"flag":                 {container.Args[len(container.Args)-1], "-v=1"},
		"mount":                {container.VolumeMounts[len(container.VolumeMounts)-1].MountPath, "/var/log/csr"},
		"budget":               {all["PodDisruptionBudget "+systemNamespace+"/csr-controller-manager"] == nil, true},
		"policy":               {all["NetworkPolicy "+systemNamespace+"/csr-controller-manager"] == nil, true},
		"signing Secrets":      {secret.Rules[0].ResourceNames, []string{"csr-signer", "web-ca"}},
		"custom signers' role": {custom.Rules[0].ResourceNames, []string{"example.com/web"}},
	} {
		if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	plane := typed[appsv1.Deployment](t, helm(t, "--set=controlPlane.enabled=true,controlPlane.maxUnavailable=1"), "Deployment")["csr-controller-manager"]
	if got := plane.Spec.Strategy.RollingUpdate.MaxUnavailable.String(); got != "1" {
		t.Errorf("rollout: %s unavailable, want 1", got)
	}
	accept(t, all)
	if loaded := load(t, all)["csr-controller-manager"]; loaded.MetricsBindAddress != ":9443" || loaded.Audit.Path != "/var/log/csr/audit.log" {
		t.Errorf("configuration %+v", loaded)
	}
}

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
