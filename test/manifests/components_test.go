package manifests

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The components that grant more rights, and the configuration for which the chart grants the same rights.
const (
	serving    = "kubelet-serving"
	identity   = "node-identity"
	ruled      = "approval-rules"
	clusterAPI = "inventory-cluster-api"
	openshift  = "inventory-openshift"
	blocked    = "node-block-list"
	createCA   = "create-ca"
)

var components = []string{serving, identity, ruled, clusterAPI, openshift, blocked, createCA}

// componentValues maps values of the chart to the components with the same roles.
var componentValues = map[string][]string{
	`{}`:                                                             nil,
	`{"kubeletServing":{"enabled":false}}`:                           nil,
	`{"kubeletServing":{"enabled":true}}`:                            {serving},
	`{"nodeClient":{"inventory":""}}`:                                nil,
	`{"nodeClient":{"inventory":"static"}}`:                          {identity},
	`{"nodeClient":{"requireTokenBinding":true}}`:                    {identity},
	`{"nodeClient":{"inventory":"cluster-api","clusterName":"lab"}}`: {identity, clusterAPI},
	`{"nodeClient":{"inventory":"openshift"},"kubeletServing":{"enabled":true}}`:                         {serving, identity, openshift},
	`{"nodeClient":{"inventory":"cluster-api","clusterName":"lab"},"inventory":{"kubeconfig":"/other"}}`: {identity},
	`{"nodeClient":{"inventory":"openshift"},"inventory":{"sources":[{"machine":{"kind":"M"}}]}}`:        {identity},
	`{"rules":[]}`: nil,
	`{"rules":[{"name":"a","signerName":"example.com/a","preset":"serviceNames"}]}`: {ruled},
	`{"inventory":{"sources":[{"static":{"configMap":"example/nodes"}}]}}`:          nil,
}

// TestChartComponents compares the chart's roles for a configuration with those of the components. A split install has the same roles with
// other subjects, which two configurations show.
func TestChartComponents(t *testing.T) {
	t.Parallel()
	for _, options := range []string{"--set=split=false", "--set=split=true"} {
		without := helm(t, options)
		for values, names := range componentValues {
			if options == "--set=split=true" && len(names) < 2 {
				continue
			}
			want := objects{}
			for _, name := range names {
				for key, obj := range kustomize(t, name) {
					want[key] = obj
				}
			}
			got := added(without, helm(t, options, "--set-json=config.approval="+values))
			maps.DeleteFunc(got, func(key string, _ *unstructured.Unstructured) bool { return strings.HasSuffix(key, "/"+ruleSigners) })
			if options == "--set=split=true" {
				common, own := subjects(t, want), subjects(t, got)
				if !cmp.Equal(common, []string{"csr-controller-manager"}) || !cmp.Equal(own, []string{approver}) {
					t.Errorf("%s: bound to %v, by the components to %v", values, own, common)
				}
				unbind(want)
				unbind(got)
			}
			if diff := cmp.Diff(unlabelled(want), unlabelled(got)); diff != "" {
				t.Errorf("%s %s (-components +chart):\n%s", options, values, diff)
			}
		}
	}
}

// ruleSigners is the role of the chart to approve for the signers of approval rules.
const ruleSigners = "csr-approval-rules-signers"

// TestChartApprovalRules checks the right to approve for signers that have approval rules.
func TestChartApprovalRules(t *testing.T) {
	t.Parallel()
	const rules = `--set-json=config.approval.rules=[{"name":"a","signerName":"example.com/a","preset":"serviceNames"},` +
		`{"name":"b","signerName":"example.com/b","preset":"serviceNames"},{"name":"c","signerName":"example.com/a","preset":"serviceNames"}]`
	all := helm(t, "--set=split=true", rules)
	role, binding := all["ClusterRole /"+ruleSigners], all["ClusterRoleBinding /"+ruleSigners]
	if role == nil || binding == nil {
		t.Fatalf("role %v, binding %v", role, binding)
	}
	want := []any{map[string]any{
		"apiGroups": []any{"certificates.k8s.io"}, "resources": []any{"signers"},
		"resourceNames": []any{"example.com/a", "example.com/b"}, "verbs": []any{"approve"},
	}}
	if diff := cmp.Diff(want, role.Object["rules"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if bound := subjects(t, objects{key(binding): binding}); !cmp.Equal(bound, []string{approver}) {
		t.Errorf("bound to %v", bound)
	}
	if dry := helm(t, rules, `--set-json=config.dryRun=["approver"]`); dry["ClusterRole /"+ruleSigners] != nil {
		t.Error("a dry run may approve")
	}
}

// TestChartStaticSources checks the roles for lists of nodes, which have no component.
func TestChartStaticSources(t *testing.T) {
	t.Parallel()
	const sources = `"inventory":{"sources":[{"static":{"configMap":"example/a"}},{"static":{"configMap":"other/c"}},{"static":{"configMap":"example/b"}},{"static":{"rows":[{"name":"n"}]}},{"node":{}}]}`
	all := helm(t, `--set-json=config.approval={"kubeletServing":{"enabled":true},`+sources+`}`)
	for namespace, names := range map[string][]string{"example": {"a", "b"}, "other": {"c"}} {
		want := []any{
			map[string]any{"apiGroups": []any{""}, "resources": []any{"configmaps"}, "resourceNames": anys(names), "verbs": []any{"list", "watch"}},
			map[string]any{"apiGroups": []any{"events.k8s.io"}, "resources": []any{"events"}, "verbs": []any{"create", "patch"}},
		}
		role := all["Role "+namespace+"/csr-inventory-static"]
		binding := all["RoleBinding "+namespace+"/csr-inventory-static"]
		if role == nil || binding == nil {
			t.Fatalf("%s: role %v, binding %v", namespace, role, binding)
		}
		if diff := cmp.Diff(want, role.Object["rules"]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", namespace, diff)
		}
		if bound := subjects(t, objects{key(binding): binding}); !cmp.Equal(bound, []string{"csr-controller-manager"}) {
			t.Errorf("%s: bound to %v", namespace, bound)
		}
	}
}

// componentQuestions name the components that grant the right, where other questions name controllers.
var componentQuestions = []question{
	{"list", "", "nodes", "", "", []string{serving, identity}},
	{"update", "", "nodes", "", "", nil},
	{"delete", "", "nodes", "", "", nil},
	{"list", "", "services", "", "", []string{serving}},
	{"get", "", "services", "any", "any", []string{ruled}},
	{"update", "", "services", "", "", nil},
	{"watch", "discovery.k8s.io", "endpointslices", "default", "", []string{serving}},
	{"watch", "discovery.k8s.io", "endpointslices", "kube-system", "", nil},
	{"approve", "certificates.k8s.io", "signers", "", "kubernetes.io/kubelet-serving", []string{serving}},
	{"approve", "certificates.k8s.io", "signers", "", "kubernetes.io/kube-apiserver-client", nil},
	{"approve", "certificates.k8s.io", "signers", "", "", nil},
	{"list", "coordination.k8s.io", "leases", "kube-node-lease", "", []string{identity}},
	{"update", "coordination.k8s.io", "leases", "kube-node-lease", "", nil},
	{"list", "coordination.k8s.io", "leases", "kube-system", "", nil},
	{"get", "", "configmaps", "kube-public", "cluster-info", []string{identity}},
	{"watch", "", "configmaps", "kube-public", "cluster-info", nil},
	{"get", "", "configmaps", "kube-public", "other", nil},
	{"list", "", "configmaps", "kube-public", "", nil},
	{"get", "", "serviceaccounts", "kube-system", "any", []string{identity, ruled}},
	{"list", "", "serviceaccounts", "", "", nil},
	{"create", "", "serviceaccounts/token", "kube-system", "any", nil},
	{"list", "", "secrets", "kube-system", "", nil},
	{"get", "", "secrets", "kube-system", "bootstrap-token-abcdef", nil},
	{"watch", "cluster.x-k8s.io", "machines", "", "", []string{clusterAPI}},
	{"update", "cluster.x-k8s.io", "machines", "", "", nil},
	{"watch", "machine.openshift.io", "machines", "openshift-machine-api", "", []string{openshift}},
	{"watch", "machine.openshift.io", "machines", "", "", nil},
	{"update", "machine.openshift.io", "machines", "openshift-machine-api", "", nil},
	{"get", "", "configmaps", systemNamespace, "csr-node-block-list", []string{blocked}},
	{"update", "", "configmaps", systemNamespace, "csr-node-block-list", nil},
	{"get", "", "configmaps", systemNamespace, "other", nil},
	{"list", "", "configmaps", systemNamespace, "", nil},
	{"create", "", "secrets", systemNamespace, "", []string{createCA}},
	{"create", "", "secrets", "kube-system", "", nil},
	{"update", "", "secrets", systemNamespace, "", nil},
	{"*", "*", "*", "", "", nil},
}

// TestComponentRights installs one component after the other, and checks the rights that only this component grants.
func TestComponentRights(t *testing.T) {
	for _, name := range []string{systemNamespace, "openshift-machine-api"} {
		space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := admin.Create(t.Context(), space); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	const account = "system:serviceaccount:" + systemNamespace + ":"
	ask(t, componentQuestions, map[string][]string{account + "csr-controller-manager": nil, account + approver: nil})
	for _, name := range components {
		t.Run(name, func(t *testing.T) {
			all := kustomize(t, name)
			apply(t, all)
			defer revoke(t, all, name, account+"csr-controller-manager")
			ask(t, componentQuestions, map[string][]string{account + "csr-controller-manager": {name}, account + approver: nil, account + signer: nil})
		})
	}
	t.Run("chart, split", func(t *testing.T) {
		const values = `--set-json=config.approval={"kubeletServing":{"enabled":true},"nodeClient":{"inventory":"cluster-api","clusterName":"lab"}}`
		all := added(helm(t, "--set=split=true"), helm(t, "--set=split=true", values))
		apply(t, all)
		defer revoke(t, all, serving, account+approver)
		ask(t, componentQuestions, map[string][]string{account + approver: {serving, identity, clusterAPI}, account + signer: nil, account + cleaner: nil})
	})
}

// revoke removes a component, and waits until user has lost its rights.
func revoke(t *testing.T, all objects, component, user string) {
	t.Helper()
	for name, obj := range all {
		if err := admin.Delete(t.Context(), obj); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, q := range componentQuestions {
		if !slices.Contains(q.may, component) {
			continue
		}
		revoked(t, q.of(user))
	}
}

// revoked waits until the request in spec is no longer allowed.
func revoked(t *testing.T, spec authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		return !allowed(ctx, t, spec), nil
	})
	if err != nil {
		t.Errorf("%s still may %v", spec.User, spec.ResourceAttributes)
	}
}

// added returns the roles and bindings in with that are not in without.
func added(without, with objects) objects {
	more := objects{}
	for name, obj := range with {
		if without[name] == nil && strings.Contains(obj.GetAPIVersion(), rbacv1.GroupName) {
			more[name] = obj
		}
	}
	return more
}

// subjects returns the names of the bound subjects.
func subjects(t *testing.T, all objects) []string {
	t.Helper()
	var names []string
	for _, obj := range all {
		list, _ := obj.Object["subjects"].([]any)
		for _, each := range list {
			subject := each.(map[string]any)
			if subject["kind"] != "ServiceAccount" || subject["namespace"] != systemNamespace {
				t.Errorf("%s binds %v", key(obj), subject)
			}
			names = append(names, subject["name"].(string))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func unbind(all objects) {
	for _, obj := range all {
		delete(obj.Object, "subjects")
	}
}

func unlabelled(all objects) map[string]any {
	found := map[string]any{}
	for name, obj := range all {
		obj.SetLabels(nil)
		found[name] = obj.Object
	}
	return found
}

func anys(texts []string) []any {
	var list []any
	for _, text := range texts {
		list = append(list, text)
	}
	return list
}
