package manifests

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const rotated = "--set=config.rotation.enabled=true"

// TestSame compares the chart with kustomize, object by object. Three differences are needed. Helm creates the
// Namespace without a manifest. Helm has its own labels. A changed configuration rolls out by the name of the
// ConfigMap or by an annotation.
func TestSame(t *testing.T) {
	t.Parallel()
	for folder, values := range map[string]string{
		"default": "split=false", "overlays/split": "split=true", "overlays/control-plane": "controlPlane.enabled=true",
		splitRotation: "split=true,config.rotation.enabled=true", hostedServed: "hosted.cluster=served,config.rotation.enabled=true",
	} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			want := kustomize(t, folder)
			kit.Check(t, want["Namespace /"+systemNamespace] != nil, "kustomize has no Namespace")
			delete(want, "Namespace /"+systemNamespace)
			same(t, want, helm(t, "--set="+values))
		})
	}
	for folder, value := range map[string]string{ // what an option of the chart adds
		"prometheus/servicemonitor": "serviceMonitor.enabled=true", "request-limits": "requestLimitsPolicy.enabled=true",
		"rotation": "config.rotation.enabled=true", "overlays/authorization-files": "authorizationFiles.enabled=true",
	} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			const list = "--set=config.nodeBlockList=" + systemNamespace + "/csr-node-block-list"
			same(t, kustomize(t, folder), added(helm(t, list), helm(t, list, "--set="+value)))
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
	kit.Equal(t, "the chart, beside kustomize", plain(t, got), plain(t, want))
}

// added returns the objects in with that are not in without.
func added(without, with objects) objects {
	maps.DeleteFunc(with, func(name string, _ *unstructured.Unstructured) bool { return without[name] != nil })
	return with
}

// plain returns the parts that must be the same.
func plain(t *testing.T, all objects) map[string]any {
	t.Helper()
	unhash := func(name string) string { // kustomize appends a hash
		base, _, _ := strings.Cut(name, "-config-")
		return strings.TrimSuffix(base, "-config") + "-config"
	}
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
			kit.Require(t, ok, "%s mounts no ConfigMap first", name)
			config["name"] = unhash(config["name"].(string))
			unstructured.RemoveNestedField(obj.Object, "spec", "template", "metadata", "annotations", "checksum/config")
		case "CustomResourceDefinition": // TestRollouts checks that an uninstall keeps it
			unstructured.RemoveNestedField(obj.Object, "metadata", "annotations", "helm.sh/resource-policy")
		}
		found[name] = obj.Object
	}
	return found
}

// TestChartRefuses renders the chart with wrong values. Helm reports all violations of the schema at once, so values that violate it at
// different places share a run. The values of the other runs are refused by a template, which runs only with valid values.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for _, violations := range []map[string]string{
		{
			"replica=3":                       "'replica' not allowed",
			"replicas=two":                    "at '/replicas': got string, want integer",
			"image.tag=a/b":                   "at '/image/tag': 'a/b' does not match pattern",
			"controlPlane.maxUnavailable=all": "at '/controlPlane/maxUnavailable': 'all' does not match pattern",
			"ports.metrics=70000":             "at '/ports/metrics': maximum: got 70,000, want 65,535",
			"extraArgs={run}":                 "at '/extraArgs/0'",
			"config.metricsSecure=false":      "at '/config': additional properties 'metricsSecure' not allowed",
			"config.signing.duration=1d":      "at '/config/signing/duration': '1d' does not match pattern",
			"config.approval.denial=Always":   "at '/config/approval/denial'",
			"config.approval.inventory.sources[0].static.configMap=a/b,config.approval.inventory.sources[0].machine.kind=M": "/sources/0': maxProperties",
			"config.approval.limit.burst=-1": "at '/config/approval/limit/burst': minimum: got -1, want 0",
			"config.signing.secret=ca":       "at '/config/signing/secret'",
		},
		{"split=true,controlPlane.enabled=true": "split and controlPlane.enabled: the three Deployments would want the same ports"},
		{"authorizationFiles.enabled=true": "authorizationFiles.enabled: config.nodeBlockList names no block list"},
		{"config.signing.secret=kube-system/ca": "Secret kube-system/ca: the chart gives no rights outside of its namespace, csr-controller-manager-system"},
	} {
		refused(t, slices.Collect(maps.Values(violations)), "--set="+strings.Join(slices.Collect(maps.Keys(violations)), ","))
	}
	// Below 1.30, no policy can protect the spec of a rotation from users who may patch.
	refused(t, []string{"config.rotation.enabled: needs Kubernetes 1.30 or later"}, rotated, "--kube-version=1.29.9")
	refused(t, []string{"authorizationFiles.enabled: needs Kubernetes 1.32 or later"}, "--set=authorizationFiles.enabled=true", "--kube-version=1.31.9")
	helm(t, "--kube-version=1.29.9")
	kit.Check(t, helm(t, rotated, "--kube-version=1.30.0")["ValidatingAdmissionPolicyBinding /csr-rotation-spec"] != nil,
		"no policy with Kubernetes 1.30")
}

func refused(t *testing.T, want []string, flags ...string) {
	t.Helper()
	_, err := output(helmCommand(t, flags...)...)
	for _, part := range want {
		kit.Check(t, err != nil && strings.Contains(err.Error(), part), "%q: want %q in:\n%v", flags, part, err)
	}
}

// ofTheChart are the fields of the configuration that the chart sets itself.
var ofTheChart = []string{
	"apiVersion", "kind", "kubeconfig", "home.kubeconfig", "metricsBindAddress", "metricsSecure", "healthProbeBindAddress",
	"leaderElection.resourceName", "leaderElection.resourceNamespace",
}

// TestSchemaKnowsTheConfiguration compares the schema with the Go type, field by field.
func TestSchemaKnowsTheConfiguration(t *testing.T) {
	t.Parallel()
	var schema struct{ Definitions map[string]any }
	kit.NoError(t, json.Unmarshal(read(t, filepath.Join(root, chart, "values.schema.json")), &schema))
	want := fields(reflect.TypeFor[config.Configuration](), "")
	want = slices.DeleteFunc(want, func(field string) bool { return slices.Contains(ofTheChart, field) })
	got := properties(schema.Definitions, schema.Definitions["config"], "")
	slices.Sort(want)
	slices.Sort(got)
	kit.Equal(t, "fields of the schema", got, want)
}

// fields returns the paths of the JSON fields below kind that hold no struct of this module.
func fields(kind reflect.Type, path string) (all []string) {
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
		kind = kind.Elem()
	}
	if kind.Kind() != reflect.Struct || kind.Name() == "Duration" {
		return []string{strings.TrimPrefix(path, ".")}
	}
	for field := range kind.Fields() {
		switch name, options, _ := strings.Cut(field.Tag.Get("json"), ","); {
		case name == "-":
		case options == "inline":
			all = append(all, fields(field.Type, path)...)
		default:
			all = append(all, fields(field.Type, path+"."+name)...)
		}
	}
	return all
}

// properties returns the same paths in a schema.
func properties(definitions map[string]any, schema any, path string) (all []string) {
	node := schema.(map[string]any)
	if ref, ok := node["$ref"].(string); ok {
		node = definitions[strings.TrimPrefix(ref, "#/definitions/")].(map[string]any)
	}
	if items, ok := node["items"]; ok {
		return properties(definitions, items, path)
	}
	below, ok := node["properties"].(map[string]any)
	if !ok {
		return []string{strings.TrimPrefix(path, ".")}
	}
	for name, each := range below {
		all = append(all, properties(definitions, each, path+"."+name)...)
	}
	return all
}

// TestChartOptions checks values without an overlay.
func TestChartOptions(t *testing.T) {
	t.Parallel()
	const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
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
networkPolicy: {egress: [{to: [{ipBlock: {cidr: 192.0.2.1/32}}], ports: [{protocol: TCP, port: 8443}]}]}
serviceMonitor: {enabled: true, tokenSecret: scraper}
extraArgs: [-v=1]
extraVolumes: [{name: audit, hostPath: {path: /var/log/csr}}]
extraVolumeMounts: [{name: audit, mountPath: /var/log/csr}]
authorizationFiles: {enabled: true, base: /base.yaml}
config:
  verbosity: 1
  audit: {path: /var/log/csr/audit.log}
  nodeBlockList: default/list
  blockListEnforcement: {enabled: true}
`
	kit.Write(t, values, []byte(text))
	all := helm(t, "--values", values)
	pod := typed[appsv1.Deployment](t, all, "Deployment")[common].Spec.Template
	container := pod.Spec.Containers[0]
	loaded := load(t, all)[common]
	policy := typed[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")[common].Spec.Egress
	usual := typed[networkingv1.NetworkPolicy](t, helm(t), "NetworkPolicy")[common].Spec.Egress
	monitor := all["ServiceMonitor "+systemNamespace+"/"+common]
	endpoints, _, err := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
	kit.NoError(t, err)
	endpoint := endpoints[0].(map[string]any)
	writer := typed[appsv1.DaemonSet](t, all, "DaemonSet")[authorizationFiles].Spec.Template.Spec
	guard := typed[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy")["csr-block-list"].Spec
	options := helm(t, "--set=networkPolicy.enabled=false,controlPlane.enabled=true,controlPlane.maxUnavailable=1")
	rollout := typed[appsv1.Deployment](t, options, "Deployment")[common].Spec.Strategy.RollingUpdate
	for what, pair := range map[string][2]any{
		"image":          {container.Image, "example.com/csr@sha256:" + digest},
		"pull secret":    {pod.Spec.ImagePullSecrets[0].Name, "pull"},
		"priority class": {pod.Spec.PriorityClassName, "mine"},
		"node selector":  {pod.Spec.NodeSelector, map[string]string{"disk": "fast"}},
		"toleration":     {pod.Spec.Tolerations[len(pod.Spec.Tolerations)-1].Key, "mine"},
		"annotation":     {pod.Annotations["a"], "b"},
		"flag":           {container.Args[len(container.Args)-1], "-v=1"},
		"mount":          {container.VolumeMounts[len(container.VolumeMounts)-1].MountPath, "/var/log/csr"},
		"audit log":      {loaded.Audit.Path, "/var/log/csr/audit.log"},
		"port":           {loaded.MetricsBindAddress, ":9443"},
		"budget":         {all["PodDisruptionBudget "+systemNamespace+"/"+common] == nil, true},
		"policy":         {options["NetworkPolicy "+systemNamespace+"/"+common] == nil, true},
		"egress":         {policy[1].To[0].IPBlock.CIDR, "192.0.2.1/32"},
		"API server":     {policy[:1], usual},
		"token":          {endpoint["authorization"], map[string]any{"credentials": map[string]any{"name": "scraper", "key": "token"}}},
		"no token file":  {endpoint["bearerTokenFile"], nil},
		"rollout":        {rollout.MaxUnavailable.String(), "1"},
		"writer's image": {writer.Containers[0].Image, "example.com/csr@sha256:" + digest},
		"writer's pull":  {writer.ImagePullSecrets, pod.Spec.ImagePullSecrets},
		"writer's flags": {writer.Containers[0].Args[1:], []string{
			"--block-list=default/list", "--to=/etc/kubernetes/pki/csr-authorization/authorization.yaml", "--base=/base.yaml",
		}},
		"guarded namespace": {guard.MatchConstraints.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"], "default"},
		"guarded names":     {strings.HasSuffix(guard.MatchConditions[0].Expression, `in ["list", "list-status"]`), true},
	} {
		kit.Equal(t, what, pair[0], pair[1])
	}
	delete(all, "ServiceMonitor "+systemNamespace+"/"+common) // an API server without the prometheus-operator does not know it
	accept(t, all)
}

// TestRequestLimitsFollowTheConfiguration checks that the policy refuses exactly what the manager's own limit refuses, to the byte.
func TestRequestLimitsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{65_535, 65_536, 65_537} {
		all := helm(t, fmt.Sprintf("--set=requestLimitsPolicy.enabled=true,config.requestLimits.maxRequestBytes=%d", limit))
		policy := typed[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy")["csr-request-limits"].Spec
		fits := len(strings.TrimRight(base64.StdEncoding.EncodeToString(make([]byte, limit)), "="))
		rule := policy.Validations[0]
		if !strings.HasSuffix(rule.Expression, fmt.Sprintf(" <= %d", fits)) || !strings.HasSuffix(rule.Message, fmt.Sprintf(" %d bytes", limit)) {
			t.Errorf("a limit of %d bytes: %s, %q; want %d characters", limit, rule.Expression, rule.Message, fits)
		}
	}
	all := helm(t, "--set=requestLimitsPolicy.enabled=true,config.requestLimits.maxEntries=65536,config.requestLimits.maxObjectBytes=1000")
	policy := typed[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy")["csr-request-limits"].Spec
	kit.Equal(t, "entries and bytes", policy.Variables[:2], []admissionregistrationv1.Variable{
		{Name: "maxEntries", Expression: "65536"}, {Name: "maxObjectBytes", Expression: "1000"},
	})
}

// TestShareInChart compares the chart's objects with those of config/priority-and-fairness, which name all identities.
func TestShareInChart(t *testing.T) {
	t.Parallel()
	want := kustomize(t, "priority-and-fairness")
	accounts := func(all objects) (names []string) {
		rules := typed[flowcontrolv1.FlowSchema](t, all, "FlowSchema")[common].Spec.Rules
		for _, subject := range rules[0].Subjects {
			names = append(names, subject.ServiceAccount.Name)
		}
		return names
	}
	var byCharts []string
	for _, values := range []string{"--set=split=false", "--set=split=true,config.rotation.enabled=true"} {
		got := added(helm(t, values), helm(t, values, "--set=priorityAndFairness.enabled=true"))
		byCharts = append(byCharts, accounts(got)...)
		// The chart names its own identities.
		flow := "FlowSchema /" + common
		got[flow].Object["spec"].(map[string]any)["rules"].([]any)[0].(map[string]any)["subjects"] =
			want[flow].Object["spec"].(map[string]any)["rules"].([]any)[0].(map[string]any)["subjects"]
		same(t, want, got)
	}
	kit.Equal(t, "identities of the charts", slices.Sorted(slices.Values(byCharts)), slices.Sorted(slices.Values(accounts(want))))
}

const (
	helmRelease = "csr"

	deployments        = "deployments.apps " + systemNamespace + "/"
	signingAuthorities = "customresourcedefinitions.apiextensions.k8s.io /signingauthorities.csr-controller-manager.io"
	rolesOfRotation    = "roles.rbac.authorization.k8s.io " + systemNamespace + "/csr-rotation"

	year = 365 * 24 * time.Hour
)

// testHelmRelease takes a release of the chart through its life: install, upgrade with other values, rollback, uninstall, and install
// again. Helm waits until the pods are ready. After each step there are the objects that the docs promise, and the manager signs.
func (u *upgrade) testHelmRelease(t *testing.T) {
	t.Helper()
	h := startHelm(t, u)
	before := h.objects(t)
	h.helm(t, "install", helmRelease, chart, "--set=split=true")
	h.want(t, "the install", year, map[string]bool{
		deployments + "csr-approver": true, deployments + "csr-signer": true, deployments + "csr-cleaner": true, deployments + "csr-rotation": false,
		"clusterrolebindings.rbac.authorization.k8s.io /csr-signer": true, "serviceaccounts. " + systemNamespace + "/csr-cleaner": true,
		rolesOfRotation: false, signingAuthorities: false,
	})
	h.helm(t, "upgrade", helmRelease, chart, "--set=split=true,config.signing.duration=2h,config.rotation.enabled=true")
	h.make(t, h.authority(t)) // with rotation, no CA signs that is not proven to be trusted
	h.want(t, "the upgrade", 2*time.Hour, map[string]bool{deployments + "csr-rotation": true, signingAuthorities: true, rolesOfRotation: true})

	h.helm(t, "rollback", helmRelease, "1")
	h.want(t, "the rollback", year, map[string]bool{deployments + "csr-rotation": false, signingAuthorities: true, rolesOfRotation: false})

	h.uninstall(t, before)
	h.helm(t, "install", helmRelease, chart, "--set=config.rotation.enabled=true") // takes over the API that was left
	h.want(t, "the second install", year, map[string]bool{deployments + "csr-controller-manager": true, deployments + "csr-signer": false})
	h.uninstall(t, before)
}

// helmed is a cluster whose pods are processes, and helm.
type helmed struct {
	*upgrade
	path string
	env  []string
}

func startHelm(t *testing.T, u *upgrade) *helmed {
	t.Helper()
	path := kit.Must(helmPath())(t)
	kubeconfig, err := u.WriteKubeconfig("helm", u.Config)
	kit.NoError(t, err)
	own := t.TempDir()
	env := append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+own, "HELM_CONFIG_HOME="+own, "HELM_DATA_HOME="+own)
	return &helmed{u, path, env}
}

// helm runs a command of helm, and the pods until it ends. It must succeed.
func (h *helmed) helm(t *testing.T, args ...string) {
	t.Helper()
	if slices.Contains([]string{"install", "upgrade"}, args[0]) { // the annotation stands for the image
		args = append(args, fmt.Sprintf("--set=replicas=%d,podAnnotations.binary=%s", h.replicas, h.current.binary))
	}
	command := exec.CommandContext(t.Context(), h.path, append(args, "--wait", "--timeout=60s", "--namespace="+systemNamespace)...)
	command.Dir, command.Env = root, h.env
	if output, err := h.during(t, command); err != nil {
		t.Fatalf("helm %s: %v\n%s\nnot ready: %v", args, err, output, h.notReady(t.Context()))
	}
}

// during runs a command, and the pods until it ends. It returns the output.
func (u *upgrade) during(t *testing.T, command *exec.Cmd) (string, error) {
	t.Helper()
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	kit.NoError(t, command.Start())
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	var err error
	u.within(t, 90*time.Second, command.String()+" ends", func(context.Context) error {
		select {
		case err = <-ended:
			return nil
		default:
			return errors.New("it runs")
		}
	})
	return output.String(), err
}

func (h *helmed) objects(t *testing.T) sets.Set[string] {
	t.Helper()
	found := kit.Must(cluster.Objects(t.Context(), h.Config))(t)
	return found
}

// want checks which of these objects there are, and that a new certificate is valid for that time.
func (h *helmed) want(t *testing.T, after string, validity time.Duration, wanted map[string]bool) {
	t.Helper()
	all := h.objects(t)
	for object, want := range wanted {
		if got := contains(all, object); got != want {
			t.Errorf("after %s: %s exists: %t, want %t", after, object, got, want)
		}
	}
	cert := h.signs(t, after)
	if got := cert.NotAfter.Sub(cert.NotBefore); got < validity || got > validity+10*time.Minute { // it begins a little earlier
		t.Errorf("after %s a certificate is valid for %s, want %s", after, got, validity)
	}
}

func contains(all sets.Set[string], object string) bool {
	return slices.ContainsFunc(all.UnsortedList(), func(one string) bool { return strings.HasPrefix(one, object+" ") })
}

// remain are the objects that an uninstall leaves, beside those from before the install: the API of rotation, which the
// chart keeps, and objects that the manager or an administrator made.
var remain = []string{
	signingAuthorities, "apiservices.apiregistration.k8s.io /v1alpha1.csr-controller-manager.io", "signingauthorities.csr-controller-manager.io /cluster",
	"configmaps. " + systemNamespace + "/csr-trust", "configmaps. " + systemNamespace + "/csr-signer-ledger",
	"clustertrustbundles.certificates.k8s.io /kubernetes.io:kube-apiserver-client",
	"certificatesigningrequests.", "events.", "leases.coordination.k8s.io " + systemNamespace + "/csr-",
}

// uninstall removes the release. What is left is what there was before, and what remains.
func (h *helmed) uninstall(t *testing.T, before sets.Set[string]) {
	t.Helper()
	h.helm(t, "uninstall", helmRelease)
	h.within(t, time.Minute, "nothing is left", func(ctx context.Context) error {
		now, err := cluster.Objects(ctx, h.Config)
		if err != nil {
			return err
		}
		for object := range before {
			if !now.Has(object) && !strings.HasPrefix(object, "events.") {
				return fmt.Errorf("missing: %s", object)
			}
		}
		var left []string
		for object := range now.Difference(before) {
			if !slices.ContainsFunc(remain, func(start string) bool { return strings.HasPrefix(object, start) }) {
				left = append(left, object)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return kit.OrError(contains(now, signingAuthorities), "the API of rotation is gone")
	})
}
