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
	if _, found := typed[appsv1.Deployment](t, helm(t, "--set=split=true"), "Deployment")[rotator]; found {
		t.Error("there is one without rotation")
	}
	all := helm(t, "--set=split=true", rotated)
	deployment := typed[appsv1.Deployment](t, all, "Deployment")[rotator]
	pod := deployment.Spec.Template.Spec
	if pod.ServiceAccountName != rotator || !slices.Contains(pod.Containers[0].Args, "--controllers=rotation") || all["ServiceAccount "+systemNamespace+"/"+rotator] == nil {
		t.Errorf("pod: %+v", pod)
	}
	for deployment, loaded := range load(t, all) { // load fails the test if one of them would not start
		if loaded.Enabled(config.RotationController) != (deployment == rotator) {
			t.Errorf("%s rotates: %t", deployment, deployment != rotator)
		}
	}
	if _, found := load(t, helm(t, "--set=split=true", rotated, "--set=config.dryRun={*}"))[rotator]; found {
		t.Error("there is one in a dry run, which it has not")
	}
}

// TestRotationChartNames checks that the names of Secrets and custom signers are in the roles.
func TestRotationChartNames(t *testing.T) {
	t.Parallel()
	all := helm(t, rotated, "--set-json=config.signing="+
		`{"secret":"`+systemNamespace+`/a","signers":[{"name":"example.com/web","secret":"`+systemNamespace+`/b","usages":["server auth"]}]}`)
	rules, _ := rights(t, all)
	var secrets, maps []string
	for _, rule := range rules["Role "+systemNamespace+"/csr-rotation"] {
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
	bundles := rbacv1.PolicyRule{
		APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}, Verbs: []string{"get", "create", "patch", "delete"},
	}
	for _, secret := range []string{"a", "b"} {
		for _, signer := range []string{"kubernetes.io:kube-apiserver-client", "kubernetes.io:kube-apiserver-client-kubelet", "kubernetes.io:kubelet-serving", "example.com:web"} {
			bundles.ResourceNames = append(bundles.ResourceNames, signer+":"+secret)
		}
	}
	grants(t, all, "ClusterRole /csr-rotation-bundles", "csr-controller-manager", bundles,
		rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{"example.com/web"}, Verbs: []string{"attest"}})
}
