package manifests

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// The components that grant more rights.
const (
	serving    = "kubelet-serving"
	identity   = "node-identity"
	ruled      = "approval-rules"
	clusterAPI = "inventory-cluster-api"
	openshift  = "inventory-openshift"
	blocked    = "node-block-list"
	enforced   = "block-list-enforced"
	createCA   = "create-ca"
	dryRun     = "dry-run"
)

// splitOwners are the identities of a split install that have the rights of each component.
var splitOwners = map[string][]string{
	serving: {approver}, identity: {approver}, ruled: {approver}, clusterAPI: {approver}, openshift: {approver},
	blocked: {approver, signer}, enforced: {approver}, createCA: {signer},
}

// rights returns the rules of the roles in all by "KIND NAMESPACE/NAME", and whom the bindings in all bind to each role. An identity of
// the manager is called by its name.
func rights(t *testing.T, all objects) (rules map[string][]rbacv1.PolicyRule, bound map[string][]string) {
	t.Helper()
	rules, bound = map[string][]rbacv1.PolicyRule{}, map[string][]string{}
	for name, obj := range all {
		switch obj.GetKind() {
		case "ClusterRole", "Role":
			rules[name] = as[rbacv1.ClusterRole](t, obj).Rules
		case "ClusterRoleBinding", "RoleBinding":
			binding := as[rbacv1.ClusterRoleBinding](t, obj)
			role := binding.RoleRef.Kind + " " + obj.GetNamespace() + "/" + binding.RoleRef.Name
			for _, subject := range binding.Subjects {
				who := subject.Kind + " " + subject.Namespace + "/" + subject.Name
				bound[role] = append(bound[role], strings.TrimPrefix(who, "ServiceAccount "+systemNamespace+"/"))
			}
			slices.Sort(bound[role])
			bound[role] = slices.Compact(bound[role])
		}
	}
	return rules, bound
}

// subjects returns whom the bindings in all bind.
func subjects(t *testing.T, all objects) []string {
	t.Helper()
	_, bound := rights(t, all)
	names := slices.Concat(slices.Collect(maps.Values(bound))...)
	slices.Sort(names)
	return slices.Compact(names)
}

// TestNoWildcard reads every rule, including generated roles.
func TestNoWildcard(t *testing.T) {
	t.Parallel()
	fewest := map[string]int{"default": 8, "overlays/control-plane": 8, "overlays/static-pod": 8, approverOnly: 7, splitRotation: 20,
		"overlays/authorization-files": 1, "overlays/static-pod/authorization-files": 1}
	for name := range splitOwners {
		fewest[name] = 1
	}
	for folder, fewest := range fewest {
		roles, _ := rights(t, kustomize(t, folder))
		for name, rules := range roles {
			for _, rule := range rules {
				if reason := tooWide(rule); reason != "" {
					t.Errorf("%s: %s %s: %v", folder, name, reason, rule)
				}
			}
		}
		kit.Check(t, len(roles) >= fewest, "%s: only %d roles", folder, len(roles))
	}
}

func tooWide(rule rbacv1.PolicyRule) string {
	all := slices.Concat(rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs)
	if strings.Contains(strings.Join(all, " "), "*") {
		return "has a wildcard"
	}
	byName := slices.ContainsFunc(rule.Resources, func(r string) bool { return slices.Contains([]string{"secrets", "signers", "configmaps"}, r) })
	if byName && len(rule.ResourceNames) == 0 && !slices.Equal(rule.Verbs, []string{"create"}) { // a new object has no name yet
		return "is not by name"
	}
	return ""
}

// TestRecommendedInstallKeepsApprovalFromSigning checks the first install that README and docs/how-to/deploy.md name.
// It must be one command, and give no identity both the right to approve and the right to sign.
func TestRecommendedInstallKeepsApprovalFromSigning(t *testing.T) {
	t.Parallel()
	installs := map[string]objects{"chart": helm(t, "--set=split=true"), "default": kustomize(t, "default")}
	for _, page := range []string{"README.md", "docs/how-to/deploy.md"} {
		found := regexp.MustCompile(`(?m)^ *kubectl apply -k config/(\S+)$`).FindSubmatch(read(t, filepath.Join(root, page)))
		kit.Require(t, found != nil, "%s names no install", page)
		installs[page] = kustomize(t, string(found[1]))
	}
	for what, all := range installs {
		rules, bound := rights(t, all)
		may := map[string][]string{} // by verb
		for role, names := range bound {
			for _, rule := range rules[role] {
				if slices.Contains(rule.Resources, "signers") {
					may[rule.Verbs[0]] = append(may[rule.Verbs[0]], names...)
				}
			}
		}
		both := slices.ContainsFunc(may["approve"], func(name string) bool { return slices.Contains(may["sign"], name) })
		kit.Check(t, both == (what == "default") && len(may["approve"]) > 0 && len(may["sign"]) > 0,
			"%s: one identity may approve and sign: %t; %v", what, both, may)
	}
}

// componentValues maps fields of the configuration to the components with the roles that the chart then adds.
var componentValues = map[string][]string{
	`approval={"kubeletServing":{"enabled":false},"nodeClient":{"inventory":""},"rules":[]}`:                      nil,
	`approval={"kubeletServing":{"enabled":true}}`:                                                                {serving},
	`approval={"nodeClient":{"inventory":"static"}}`:                                                              {identity},
	`approval={"nodeClient":{"requireTokenBinding":true}}`:                                                        {identity},
	`approval={"nodeClient":{"inventory":"cluster-api","clusterName":"lab"}}`:                                     {identity, clusterAPI},
	`approval={"nodeClient":{"inventory":"openshift"},"kubeletServing":{"enabled":true}}`:                         {serving, identity, openshift},
	`approval={"nodeClient":{"inventory":"cluster-api","clusterName":"lab"},"inventory":{"kubeconfig":"/other"}}`: {identity},
	`approval={"nodeClient":{"inventory":"openshift"},"inventory":{"sources":[{"machine":{"kind":"M"}}]}}`:        {identity},
	`approval={"rules":[{"name":"a","signerName":"example.com/a","preset":"serviceNames"}]}`:                      {ruled},
	`approval={"inventory":{"sources":[{"static":{"configMap":"example/nodes"}}]}}`:                               nil,

	`nodeBlockList="` + systemNamespace + `/csr-node-block-list"`:                                          {blocked},
	`nodeBlockList="` + systemNamespace + `/csr-node-block-list",config.blockListEnforcement.enabled=true`: {blocked, enforced},
	`signing.createIfMissing=true`: {createCA},
	`signing.signers=[{"name":"example.com/a","secret":"` + systemNamespace + `/a","createIfMissing":true,"usages":["server auth"]}]`: {createCA},
}

// TestChartComponents compares the roles that the chart adds for a configuration with those of the components, and whom they are bound to.
func TestChartComponents(t *testing.T) {
	t.Parallel()
	for options, split := range map[string]bool{"--set=split=false": false, "--set=split=true": true} {
		bare := helm(t, options)
		for values, names := range componentValues {
			if split && len(names) != 1 && !slices.Contains(names, enforced) { // for these the split changes nothing else
				continue
			}
			want, wantBound := map[string][]rbacv1.PolicyRule{}, map[string][]string{}
			for _, name := range names {
				rules, bound := rights(t, kustomize(t, name))
				maps.Copy(want, rules)
				for role := range bound {
					if wantBound[role] = []string{common}; split {
						wantBound[role] = splitOwners[name]
					}
				}
			}
			all := added(bare, helm(t, options, "--set-json=config."+values))
			maps.DeleteFunc(all, func(name string, _ *unstructured.Unstructured) bool { // their names come from the configuration: TestChartRoles
				return strings.HasSuffix(name, ruleSigners) || strings.HasSuffix(name, "csr-custom-signers")
			})
			got, gotBound := rights(t, all)
			kit.Equal(t, options+" "+values+": roles", got, want)
			kit.Equal(t, options+" "+values+": bound to", gotBound, wantBound)
		}
	}
}

// TestSplitComponents compares each component for config/overlays/split with the one for config/default. Only the subjects may differ.
func TestSplitComponents(t *testing.T) {
	t.Parallel()
	for name, owners := range splitOwners {
		common, _ := rights(t, kustomize(t, name))
		own := filepath.Join("overlays/split", name)
		if _, err := os.Stat(filepath.Join(root, "config", own)); err != nil {
			continue
		}
		rules, bound := rights(t, kustomize(t, own))
		want := map[string][]string{}
		for role := range bound {
			want[role] = owners
		}
		kit.Equal(t, own+": roles", rules, common)
		kit.Equal(t, own+": bound to", bound, want)
	}
}

// ruleSigners is the role of the chart to approve for the signers of approval rules.
const ruleSigners = "csr-approval-rules-signers"

// TestChartRoles checks the roles of the chart whose names come from the configuration, and whom they are bound to.
func TestChartRoles(t *testing.T) {
	t.Parallel()
	const rules = `--set-json=config.approval.rules=[{"name":"a","signerName":"example.com/a","preset":"serviceNames"},` +
		`{"name":"b","signerName":"example.com/b","preset":"serviceNames"},{"name":"c","signerName":"example.com/a","preset":"serviceNames"}]`
	const sources = `--set-json=config.approval={"kubeletServing":{"enabled":true},"inventory":{"sources":[{"static":{"configMap":"example/a"}},` +
		`{"static":{"configMap":"other/c"}},{"static":{"configMap":"example/b"}},{"static":{"rows":[{"name":"n"}]}},{"node":{}}]}}`
	const signers = `--set-json=config.signing={"secret":"` + systemNamespace + `/a","signers":[{"name":"example.com/web","secret":"` +
		systemNamespace + `/b","usages":["server auth"]}]}`
	const bundles = "kubernetes.io:kube-apiserver-client:S kubernetes.io:kube-apiserver-client-kubelet:S kubernetes.io:kubelet-serving:S example.com:web:S"
	ofBundles := "get,create,patch,delete clustertrustbundles " + strings.ReplaceAll(bundles, ":S", ":a") + " " + strings.ReplaceAll(bundles, ":S", ":b")
	split, lists, rotating := helm(t, "--set=split=true", rules), helm(t, sources), helm(t, rotated, signers)
	for _, test := range []struct {
		all      objects
		role, to string
		want     []string
	}{
		{split, "ClusterRole /" + ruleSigners, approver, []string{"approve signers example.com/a example.com/b"}},
		{lists, "Role example/csr-inventory-static", common, []string{"list,watch configmaps a b", "create,patch events"}},
		{lists, "Role other/csr-inventory-static", common, []string{"list,watch configmaps c", "create,patch events"}},
		{rotating, "ClusterRole /csr-custom-signers", common, []string{"sign signers example.com/web"}},
		{rotating, "ClusterRole /csr-rotation-bundles", common, []string{ofBundles, "attest signers example.com/web"}},
		{rotating, "Role " + systemNamespace + "/csr-signing-secret", common, []string{"list,watch secrets a b"}},
	} {
		rules, bound := rights(t, test.all)
		var got []string
		for _, rule := range rules[test.role] {
			words := append([]string{strings.Join(rule.Verbs, ","), strings.Join(rule.Resources, ",")}, rule.ResourceNames...)
			got = append(got, strings.Join(words, " "))
		}
		kit.Equal(t, test.role, got, test.want)
		kit.Equal(t, test.role+": bound to", bound[test.role], []string{test.to})
	}
	inRotation, _ := rights(t, rotating)
	var names []string
	for _, rule := range inRotation["Role "+systemNamespace+"/csr-rotation"] {
		names = append(names, rule.ResourceNames...)
	}
	for _, want := range []string{"a", "b", "a-ledger", "a-moved", "b-ledger", "b-moved"} {
		kit.Check(t, slices.Contains(names, want), "the rotation has no right for %s: %v", want, names)
	}
	kit.Check(t, helm(t, rules, `--set-json=config.dryRun=["approver"]`)["ClusterRole /"+ruleSigners] == nil, "a dry run may approve")
}

// TestChartNodeBootstrap compares the bindings of the chart with the component: with its group, and with another group
// that the reader of docs/how-to/deploy.md chooses. The self-check must ask about the group that is bound, unless the configuration names one.
func TestChartNodeBootstrap(t *testing.T) {
	t.Parallel()
	const first, last = "components:\n- ../node-bootstrap\n", "- {op: replace, path: /subjects/0/name, value: \"system:bootstrappers:workers\"}\n"
	page := string(read(t, filepath.Join(root, "docs/how-to/deploy.md")))
	chosen := regexp.MustCompile(`(?s)` + regexp.QuoteMeta(first) + `.*?` + regexp.QuoteMeta(last)).FindString(page)
	for text, test := range map[string]struct{ value, group string }{
		first:  {"", "system:bootstrappers:kubeadm:default-node-token"},
		chosen: {",nodeBootstrap.group=system:bootstrappers:workers", "system:bootstrappers:workers"},
		"":     {",config.selfCheck.bootstrapGroups={system:bootstrappers:mine}", "system:bootstrappers:mine"},
	} {
		all := helm(t, "--set=nodeBootstrap.enabled=true"+test.value)
		kit.Equal(t, "what the self-check asks about", load(t, all)[common].SelfCheck.BootstrapGroups, []string{test.group})
		if text == "" {
			continue
		}
		accept(t, all)
		want := myCluster(t, text)
		kit.Check(t, len(want) == 3, "%s: %d bindings", test.group, len(want))
		same(t, want, added(helm(t), all))
	}
}

// overlay renders a kustomization as a user would write it.
func overlay(t *testing.T, resource string, components ...string) objects {
	t.Helper()
	text := "resources:\n- ../" + resource + "\ncomponents:\n- ../" + strings.Join(components, "\n- ../") + "\n"
	return inFolder(t, root, map[string]string{"kustomization.yaml": text})
}

// withoutWrites returns the rules of each role without those to write requests.
func withoutWrites(t *testing.T, all objects) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules, _ := rights(t, all)
	for name := range rules {
		kept := []rbacv1.PolicyRule{}
		for _, rule := range rules[name] {
			rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool {
				return slices.Contains([]string{"approve", "sign", "delete"}, verb) ||
					verb == "update" && strings.HasPrefix(rule.Resources[0], "certificatesigningrequests/")
			})
			if len(rule.Verbs) > 0 {
				kept = append(kept, rule)
			}
		}
		rules[name] = kept
	}
	return rules
}

// TestDryRunHasNoRightToWrite compares the roles of the component and the chart with those of a manager that writes.
func TestDryRunHasNoRightToWrite(t *testing.T) {
	t.Parallel()
	for folder, split := range map[string]string{"default": "--set=split=false", "overlays/split": "--set=split=true"} {
		want := withoutWrites(t, overlay(t, folder, serving))
		for what, all := range map[string]objects{
			folder:               overlay(t, folder, serving, dryRun),
			"the chart " + split: helm(t, split, `--set=config.approval.kubeletServing.enabled=true`, `--set-json=config.dryRun=["*"]`),
		} {
			got, _ := rights(t, all)
			kit.Equal(t, what+": roles", got, want)
			kit.Check(t, all["RoleBinding default/csr-cleaner"] != nil, "%s: the cleaner may write no Events", what)
			accept(t, all)
			for name, loaded := range load(t, all) {
				if !loaded.DryRuns(config.ApproverController) || !loaded.DryRuns(config.SignerController) || !loaded.DryRuns(config.CleanerController) {
					t.Errorf("%s: %s is no dry run", what, name)
				}
			}
		}
	}
	some, _ := rights(t, helm(t, `--set-json=config.dryRun=["csrsigning"]`))
	usual, _ := rights(t, helm(t))
	usual["ClusterRole /csr-signer"] = withoutWrites(t, helm(t))["ClusterRole /csr-signer"]
	kit.Equal(t, "a dry run of the signer alone", some, usual)
	ofCleaner := overlay(t, "overlays/split", "overlays/split/"+dryRun)["RoleBinding default/csr-cleaner"]
	kit.Equal(t, "who writes Events of the cleaner", subjects(t, objects{"": ofCleaner}), []string{cleaner})
	for what, all := range map[string]objects{
		"component": overlay(t, "overlays/split", "overlays/split/rotation", dryRun),
		"chart":     helm(t, "--set=split=true", rotated, "--set=config.dryRun={*}"),
	} { // there is no dry run of a rotation
		if loaded := load(t, all); len(loaded) != 3 || loaded[rotator] != nil || all["PodDisruptionBudget "+systemNamespace+"/"+rotator] != nil {
			t.Errorf("%s: a rotation is left: %v", what, slices.Collect(maps.Keys(loaded)))
		}
	}
}

// TestSecondAuthority checks that the roles of config/rotation/kubelet-serving are those of config/rotation and the signer, for another Secret.
func TestSecondAuthority(t *testing.T) {
	t.Parallel()
	other := kustomize(t, "rotation/kubelet-serving")
	accept(t, other)
	rules, bound := rights(t, other)
	first, _ := rights(t, overlay(t, "default", "rotation"))
	const role, its = "Role " + systemNamespace + "/", "csr-kubelet-serving-ca"
	for name, want := range map[string][]rbacv1.PolicyRule{
		its:               append(first[role+"csr-signing-secret"], first[role+"csr-ledger"]...),
		its + "-rotation": slices.DeleteFunc(first[role+"csr-rotation"], func(rule rbacv1.PolicyRule) bool { return len(rule.ResourceNames) == 0 }),
	} {
		for _, rule := range rules[role+name] {
			for i, each := range rule.ResourceNames {
				rule.ResourceNames[i] = strings.Replace(each, its, "csr-signer", 1)
			}
		}
		kit.Equal(t, name, rules[role+name], want)
		kit.Equal(t, name+": bound to", bound[role+name], []string{common})
	}
}
