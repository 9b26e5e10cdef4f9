package manifests

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The components that grant more rights.
const (
	serving    = "kubelet-serving"
	identity   = "node-identity"
	ruled      = "approval-rules"
	clusterAPI = "inventory-cluster-api"
	openshift  = "inventory-openshift"
	blocked    = "node-block-list"
	createCA   = "create-ca"
)

// splitOwners are the identities of a split install that have the rights of each component.
var splitOwners = map[string][]string{
	serving: {approver}, identity: {approver}, ruled: {approver}, clusterAPI: {approver}, openshift: {approver}, blocked: {approver, signer}, createCA: {signer},
}

// componentValues maps fields of the configuration to the components with the roles that the chart then adds.
var componentValues = map[string][]string{
	`approval={}`: nil,
	`approval={"kubeletServing":{"enabled":false}}`:                                                               nil,
	`approval={"kubeletServing":{"enabled":true}}`:                                                                {serving},
	`approval={"nodeClient":{"inventory":""}}`:                                                                    nil,
	`approval={"nodeClient":{"inventory":"static"}}`:                                                              {identity},
	`approval={"nodeClient":{"requireTokenBinding":true}}`:                                                        {identity},
	`approval={"nodeClient":{"inventory":"cluster-api","clusterName":"lab"}}`:                                     {identity, clusterAPI},
	`approval={"nodeClient":{"inventory":"openshift"},"kubeletServing":{"enabled":true}}`:                         {serving, identity, openshift},
	`approval={"nodeClient":{"inventory":"cluster-api","clusterName":"lab"},"inventory":{"kubeconfig":"/other"}}`: {identity},
	`approval={"nodeClient":{"inventory":"openshift"},"inventory":{"sources":[{"machine":{"kind":"M"}}]}}`:        {identity},
	`approval={"rules":[]}`: nil,
	`approval={"rules":[{"name":"a","signerName":"example.com/a","preset":"serviceNames"}]}`: {ruled},
	`approval={"inventory":{"sources":[{"static":{"configMap":"example/nodes"}}]}}`:          nil,
	`nodeBlockList="` + systemNamespace + `/csr-node-block-list"`:                            {blocked},
	`signing.createIfMissing=true`: {createCA},
	`signing.signers=[{"name":"example.com/a","secret":"` + systemNamespace + `/a","createIfMissing":true,"usages":["server auth"]}]`: {createCA},
}

// namedInConfiguration are the roles of the chart whose names or subjects come from the configuration. They have tests of their own.
var namedInConfiguration = []string{ruleSigners, "csr-custom-signers"}

// TestChartComponents compares the roles that the chart adds for a configuration with those of the components, and whom they are bound to.
func TestChartComponents(t *testing.T) {
	t.Parallel()
	for options, split := range map[string]bool{"--set=split=false": false, "--set=split=true": true} {
		bare := helm(t, options)
		for values, names := range componentValues {
			if split && len(names) == 0 {
				continue
			}
			want, wantBound := map[string][]rbacv1.PolicyRule{}, map[string][]string{}
			for _, name := range names {
				rules, bound := rights(t, kustomize(t, name))
				maps.Copy(want, rules)
				for role, to := range bound {
					if wantBound[role] = to; !cmp.Equal(to, []string{"csr-controller-manager"}) {
						t.Errorf("%s: %s is bound to %v", name, role, to)
					}
					if split {
						wantBound[role] = splitOwners[name]
					}
				}
			}
			all := added(bare, helm(t, options, "--set-json=config."+values))
			maps.DeleteFunc(all, func(name string, _ *unstructured.Unstructured) bool {
				return slices.ContainsFunc(namedInConfiguration, func(role string) bool { return strings.HasSuffix(name, "/"+role) })
			})
			got, gotBound := rights(t, all)
			if diff := cmp.Diff(want, got) + cmp.Diff(wantBound, gotBound); diff != "" {
				t.Errorf("%s %s (-components +chart):\n%s", options, values, diff)
			}
		}
	}
}

// TestSplitComponents compares each component for config/overlays/split with the one for config/default. Only the
// subjects may differ.
func TestSplitComponents(t *testing.T) {
	t.Parallel()
	for name, want := range splitOwners {
		own := filepath.Join("overlays/split", name)
		if _, err := os.Stat(filepath.Join(root, "config", own)); err != nil {
			continue
		}
		rules, bound := rights(t, kustomize(t, own))
		common, _ := rights(t, kustomize(t, name))
		if diff := cmp.Diff(common, rules); diff != "" {
			t.Errorf("%s (-default +split):\n%s", name, diff)
		}
		for role, to := range bound {
			if !cmp.Equal(want, to) {
				t.Errorf("%s: %s is bound to %v, want %v", name, role, to, want)
			}
		}
	}
}

// ruleSigners is the role of the chart to approve for the signers of approval rules.
const ruleSigners = "csr-approval-rules-signers"

// grants checks the rules of a role in all, and that an identity has it.
func grants(t *testing.T, all objects, role, to string, want ...rbacv1.PolicyRule) {
	t.Helper()
	rules, bound := rights(t, all)
	if diff := cmp.Diff(want, rules[role]); diff != "" || !cmp.Equal(bound[role], []string{to}) {
		t.Errorf("%s is bound to %v, want %s (-want +got):\n%s", role, bound[role], to, diff)
	}
}

// TestChartApprovalRules checks the right to approve for signers that have approval rules.
func TestChartApprovalRules(t *testing.T) {
	t.Parallel()
	const rules = `--set-json=config.approval.rules=[{"name":"a","signerName":"example.com/a","preset":"serviceNames"},` +
		`{"name":"b","signerName":"example.com/b","preset":"serviceNames"},{"name":"c","signerName":"example.com/a","preset":"serviceNames"}]`
	grants(t, helm(t, "--set=split=true", rules), "ClusterRole /"+ruleSigners, approver, rbacv1.PolicyRule{
		APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{"example.com/a", "example.com/b"}, Verbs: []string{"approve"},
	})
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
		grants(t, all, "Role "+namespace+"/csr-inventory-static", "csr-controller-manager",
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: names, Verbs: []string{"list", "watch"}},
			rbacv1.PolicyRule{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}})
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
	const common = account + "csr-controller-manager"
	ask(t, componentQuestions, map[string][]string{common: nil, account + approver: nil})
	for name := range splitOwners {
		t.Run(name, func(t *testing.T) {
			all := kustomize(t, name)
			apply(t, all)
			defer revoke(t, all, name, common)
			ask(t, componentQuestions, map[string][]string{common: {name}, account + approver: nil, account + signer: nil})
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
		if slices.Contains(q.may, component) {
			becomes(t, q.of(user), false)
		}
	}
}
