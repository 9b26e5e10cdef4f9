package manifests

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

const rotated = "--set=config.rotation.enabled=true"

// TestRotationChart compares the chart's objects for rotation with the component.
func TestRotationChart(t *testing.T) {
	t.Parallel()
	for _, options := range []string{"--set=split=false", "--set=split=true"} {
		without, with := helm(t, options), helm(t, options, rotated)
		for name, want := range kustomize(t, "rotation") {
			got := with[name]
			if got == nil || without[name] != nil {
				t.Errorf("%s %s: without rotation %t, with it %t", options, name, without[name] != nil, got != nil)
				continue
			}
			if want.GetKind() == "CustomResourceDefinition" {
				annotations := got.GetAnnotations()
				if annotations["helm.sh/resource-policy"] != "keep" {
					t.Errorf("an uninstall would take the authorities: %v", annotations)
				}
				delete(annotations, "helm.sh/resource-policy")
				got.SetAnnotations(annotations)
			}
			labels := got.GetLabels()
			for label, value := range want.GetLabels() { // aggregation
				if labels[label] != value {
					t.Errorf("%s %s: labels %v, want %s=%s", options, name, labels, label, value)
				}
			}
			if strings.HasSuffix(want.GetKind(), "Binding") && strings.Contains(options, "true") {
				if name := got.GetName(); name == "csr-rotation" || name == "csr-trust" {
					if bound := subjects(t, objects{name: got}); !cmp.Equal(bound, []string{"csr-rotation"}) {
						t.Errorf("%s is bound to %v", name, bound)
					}
				}
				delete(want.Object, "subjects")
				delete(got.Object, "subjects")
			}
			want.SetLabels(nil)
			got.SetLabels(nil)
			if diff := cmp.Diff(want.Object, got.Object); diff != "" {
				t.Errorf("%s %s (-component +chart):\n%s", options, name, diff)
			}
		}
	}
}

// TestRotationChartVersions checks that there is no rotation if the API has no policy that protects the spec from
// users who may patch.
func TestRotationChartVersions(t *testing.T) {
	t.Parallel()
	if helm(t, rotated, "--kube-version=1.30.0")["ValidatingAdmissionPolicyBinding /csr-rotation-spec"] == nil {
		t.Error("no policy")
	}
	helm(t, "--kube-version=1.29.9")
	const want = "config.rotation.enabled: needs Kubernetes 1.30 or later"
	if _, err := output(helmCommand(t, rotated, "--kube-version=1.29.9")...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestRotationChartSplit checks that a fourth Deployment only rotates.
func TestRotationChartSplit(t *testing.T) {
	t.Parallel()
	const name = "csr-rotation"
	if _, found := typed[appsv1.Deployment](t, helm(t, "--set=split=true"), "Deployment")[name]; found {
		t.Error("there is one without rotation")
	}
	all := helm(t, "--set=split=true", rotated)
	deployment := typed[appsv1.Deployment](t, all, "Deployment")[name]
	pod := deployment.Spec.Template.Spec
	if pod.ServiceAccountName != name || !slices.Contains(pod.Containers[0].Args, "--controllers=rotation") || all["ServiceAccount "+systemNamespace+"/"+name] == nil {
		t.Errorf("pod: %+v", pod)
	}
	for deployment, loaded := range load(t, all) { // load fails the test if one of them would not start
		if loaded.Enabled(config.RotationController) != (deployment == name) {
			t.Errorf("%s rotates: %t", deployment, deployment != name)
		}
	}
	if _, found := load(t, helm(t, "--set=split=true", rotated, "--set=config.dryRun={*}"))[name]; found {
		t.Error("there is one in a dry run, which it has not")
	}
}

// TestRotationChartNames checks that the names of Secrets and custom signers are in the roles.
func TestRotationChartNames(t *testing.T) {
	t.Parallel()
	all := helm(t, rotated, "--set-json=config.signing="+
		`{"secret":"`+systemNamespace+`/a","signers":[{"name":"example.com/web","secret":"`+systemNamespace+`/b","usages":["server auth"]}]}`)
	var secrets, maps []string
	for _, rule := range typed[rbacv1.Role](t, objects{"": all["Role "+systemNamespace+"/csr-rotation"]}, "Role")["csr-rotation"].Rules {
		if slices.Contains(rule.Resources, "secrets") {
			secrets = append(secrets, rule.ResourceNames...)
		} else {
			maps = append(maps, rule.ResourceNames...)
		}
	}
	if diff := cmp.Diff([]string{"a", "b"}, secrets); diff != "" {
		t.Errorf("Secrets (-want +got):\n%s", diff)
	}
	for _, want := range []string{"a-ledger", "a-nodes-00", "a-nodes-0f", "b-ledger", "b-nodes-0a"} {
		if !slices.Contains(maps, want) || len(maps) != 34 {
			t.Errorf("no %s in %v", want, maps)
		}
	}
	bundles := typed[rbacv1.ClusterRole](t, all, "ClusterRole")["csr-rotation-bundles"]
	want := []rbacv1.PolicyRule{
		{
			APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}, Verbs: []string{"get", "create", "patch", "delete"},
			ResourceNames: []string{
				"kubernetes.io:kube-apiserver-client:a", "kubernetes.io:kube-apiserver-client-kubelet:a", "kubernetes.io:kubelet-serving:a", "example.com:web:a",
				"kubernetes.io:kube-apiserver-client:b", "kubernetes.io:kube-apiserver-client-kubelet:b", "kubernetes.io:kubelet-serving:b", "example.com:web:b",
			},
		},
		{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{"example.com/web"}, Verbs: []string{"attest"}},
	}
	if diff := cmp.Diff(want, bundles.Rules); diff != "" {
		t.Errorf("trust bundles (-want +got):\n%s", diff)
	}
}
