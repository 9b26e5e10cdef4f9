package manifests

import (
	"maps"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestHostedRoles checks that the manager of a hosted control plane has in each cluster exactly the rights that it asks for there, beside
// the ConfigMap for the trust bundle. The chart at home is the overlay, with the name of the tenant's namespace where tenants share names.
func TestHostedRoles(t *testing.T) {
	t.Parallel()
	home := kustomize(t, hostedHome)
	loaded, asked := load(t, home)[common], map[string][]string{}
	loaded.LeaderElection.ResourceNamespace = systemNamespace // the Pod's
	for _, right := range kit.Rights(loaded) {
		cluster := right.Cluster
		right.Cluster = ""
		asked[cluster] = append(asked[cluster], right.String())
	}
	kit.Require(t, len(asked) == 2, "rights in %q", slices.Collect(maps.Keys(asked)))
	for _, verb := range []string{"get", "create", "patch"} {
		asked["home"] = append(asked["home"], check.Right{Verb: verb, Resource: "configmaps", Namespace: systemNamespace, Name: "csr-trust"}.String())
	}
	for cluster, folder := range map[string]string{"home": hostedHome, "served": hostedServed} {
		slices.Sort(asked[cluster])
		kit.Equal(t, "rights of "+folder, grantedBy(t, kustomize(t, folder)), asked[cluster])
		accept(t, kustomize(t, folder))
	}

	var chart []*unstructured.Unstructured
	for _, obj := range helm(t, "--set=hosted.cluster=home,config.rotation.enabled=true") {
		chart = append(chart, obj)
	}
	got, want := byKey(t, kit.Renamed(t, chart, "-"+systemNamespace+`"`, `"`)), maps.Clone(home)
	const pod = "ConfigMap " + systemNamespace + "/csr-home"
	kit.Equal(t, "the kubeconfig of the home", got[pod].Object["data"], want[pod].Object["data"])
	for _, all := range []objects{got, want} {
		delete(all, pod)
		delete(all, "Namespace /"+systemNamespace)
	}
	same(t, want, got)
	without := helm(t, "--set=hosted.cluster=home,hosted.definitions=false,config.rotation.enabled=true", "--namespace=tenant-b")
	for name := range without {
		kit.Check(t, got[name] == nil, "a second tenant has %s too", name)
	}
}

// grantedBy returns the rights that bindings in all give to the manager, sorted.
func grantedBy(t *testing.T, all objects) (rights []string) {
	t.Helper()
	for _, obj := range all {
		if !kit.IsBinding(obj) {
			continue
		}
		binding := as[rbacv1.RoleBinding](t, obj)
		kit.Equal(t, "subjects of "+key(obj), binding.Subjects, []rbacv1.Subject{kit.AccountCalled(common)})
		namespace := binding.Namespace
		if obj.GetKind() == "ClusterRoleBinding" {
			namespace = ""
		}
		role := all[binding.RoleRef.Kind+" "+namespace+"/"+binding.RoleRef.Name]
		kit.Require(t, role != nil, "%s binds no role that is there", key(obj))
		for _, rule := range as[rbacv1.ClusterRole](t, role).Rules {
			for _, right := range rulesOf(rule, namespace) {
				rights = append(rights, right.String())
			}
		}
	}
	slices.Sort(rights)
	return slices.Compact(rights)
}

// rulesOf returns one Right for each verb, resource and name of rule.
func rulesOf(rule rbacv1.PolicyRule, namespace string) (all []check.Right) {
	for _, verb := range rule.Verbs {
		for _, resource := range rule.Resources {
			for name := range strings.SplitSeq(strings.Join(rule.ResourceNames, "\n"), "\n") {
				all = append(all, check.Right{Verb: verb, Group: rule.APIGroups[0], Resource: resource, Namespace: namespace, Name: name})
			}
		}
	}
	return all
}
