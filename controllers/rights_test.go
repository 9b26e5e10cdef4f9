package controllers

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

const ours = "csr-controller-manager-system"

type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Rules             []rbacv1.PolicyRule `json:"rules"`
	RoleRef           rbacv1.RoleRef      `json:"roleRef"`
	Subjects          []rbacv1.Subject    `json:"subjects"`
}

func shipped(t *testing.T, folder string) (all []object) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "config", folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no roles: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(data), "\n---\n") {
			var one object
			if err := yaml.Unmarshal([]byte(document), &one); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			all = append(all, one)
		}
	}
	return all
}

// granted returns the rights that the roles of these folders give to the manager's ServiceAccount.
func granted(t *testing.T, folders ...string) (rights []string) {
	t.Helper()
	for _, folder := range folders {
		all := shipped(t, folder)
		for _, binding := range all {
			ofManager := func(s rbacv1.Subject) bool { return s.Name == "csr-controller-manager" }
			if binding.RoleRef.Name == "" || !slices.ContainsFunc(binding.Subjects, ofManager) {
				continue
			}
			i := slices.IndexFunc(all, func(role object) bool {
				return role.Kind == binding.RoleRef.Kind && role.Name == binding.RoleRef.Name &&
					(role.Kind == "ClusterRole" || role.Namespace == binding.Namespace)
			})
			if i < 0 {
				t.Errorf("%s %s is bound, and not shipped", binding.RoleRef.Kind, binding.RoleRef.Name)
				continue
			}
			for _, rule := range all[i].Rules {
				rights = append(rights, expand(rule, binding.Namespace)...)
			}
		}
	}
	slices.Sort(rights)
	return slices.Compact(rights)
}

func expand(rule rbacv1.PolicyRule, namespace string) (rights []string) {
	if len(rule.ResourceNames) == 0 {
		rule.ResourceNames = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, name := range rule.ResourceNames {
				for _, verb := range rule.Verbs {
					right := check.Right{Verb: verb, Group: group, Resource: resource, Name: name, Namespace: namespace}
					rights = append(rights, right.String())
				}
			}
		}
	}
	return rights
}

// asked returns the rights that the changed default configuration asks for, sorted, and the manifest that each names.
func asked(changes ...func(*config.Configuration)) (rights []string, manifests map[string]string) {
	manifests = map[string]string{}
	for _, right := range Rights(configured(func(c *config.Configuration) {
		for _, change := range changes {
			change(c)
		}
	}), ours) {
		rights, manifests[right.String()] = append(rights, right.String()), right.Manifest
	}
	slices.Sort(rights)
	return rights, manifests
}

// TestRightsAreWhatIsGranted checks that the shipped roles, and the roles of each component, grant exactly the rights
// that their part of the configuration adds, each once.
func TestRightsAreWhatIsGranted(t *testing.T) {
	type change = func(*config.Configuration)
	inSecret := func(c *config.Configuration) { c.Signing.Secret = ours + "/csr-signer" }
	without := func(*config.Configuration) {}
	blocking := func(c *config.Configuration) { c.NodeBlockList = ours + "/csr-node-block-list" }
	only := func(rotates bool, dryRun []string, controllers ...string) change {
		return func(c *config.Configuration) {
			inSecret(c)
			c.Controllers, c.DryRun, c.Rotation.Enabled, c.LeaderElection.Enabled = controllers, dryRun, rotates, false
		}
	}
	nothing, signer, rotation := only(false, nil), []string{"signer"}, []string{"*", "-approver", "-signer", "-cleaner"}
	for name, test := range map[string]struct {
		base, more change
		folders    []string
	}{
		"node-block-list": {without, blocking, []string{"node-block-list"}},
		"block-list-enforced": {blocking, func(c *config.Configuration) {
			blocking(c)
			c.BlockListEnforcement.Enabled = true
		}, []string{"block-list-enforced"}},
		"node-identity":   {without, func(c *config.Configuration) { c.Approval.NodeClient.RequireTokenBinding = true }, []string{"node-identity"}},
		"kubelet-serving": {without, func(c *config.Configuration) { c.Approval.KubeletServing.Enabled = true }, []string{"kubelet-serving"}},
		"approval-rules": {
			func(c *config.Configuration) { c.DryRun = []string{"approver"} }, approvalRule(rules.ServiceNames), []string{"approval-rules"}},
		"create-ca":       {inSecret, func(c *config.Configuration) { c.Signing.CreateIfMissing = true }, []string{"create-ca"}},
		"cluster-api":     {without, preset(config.InventoryClusterAPI), []string{"node-identity", "inventory-cluster-api"}},
		"openshift":       {without, preset(config.InventoryOpenShift), []string{"node-identity", "inventory-openshift"}},
		"rotation":        {nothing, only(true, nil, rotation...), []string{"rotation"}},
		"no rotation":     {nothing, only(false, nil, rotation...), nil},
		"ledger":          {only(false, nil, "signer"), only(true, nil, "signer"), []string{"rotation/ledger"}},
		"ledger, dry run": {only(false, signer, "signer"), only(true, signer, "signer"), nil},
		"all by default": {nothing, func(c *config.Configuration) {
			*c = *configured(inSecret)
			c.MetricsSecure = true
		}, []string{"rbac"}},
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := asked(test.base)
			all, manifests := asked(test.base, test.more)
			more := slices.DeleteFunc(slices.Clone(all), func(right string) bool { return slices.Contains(base, right) })
			if diff := cmp.Diff(granted(t, test.folders...), more, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("change the markers +kubebuilder:rbac and run make generate, or change the component's roles, or change "+
					"Rights: granted (-) is not what is asked for (+):\n%s", diff)
			}
			for right, manifest := range manifests {
				if slices.Contains(more, right) && !slices.ContainsFunc(test.folders, func(folder string) bool {
					return strings.HasPrefix("config/"+folder, manifest) && manifest != ""
				}) {
					t.Errorf("%s names the manifest %q, but %q grant it", right, manifest, test.folders)
				}
			}
			if once := slices.Compact(slices.Clone(all)); len(once) != len(all) {
				t.Errorf("%d of %d rights are asked for twice", len(all)-len(once), len(all))
			}
		})
	}
}

func approvalRule(preset rules.Preset) func(*config.Configuration) {
	return func(c *config.Configuration) {
		rule := rules.Rule{Name: "a", SignerName: "example.com/a", Preset: preset}
		c.CompiledRules = append(c.CompiledRules, &rules.Compiled{Rule: rule, ReadsAccount: true})
	}
}

func preset(name string) func(*config.Configuration) {
	return func(c *config.Configuration) { c.Approval.NodeClient.Inventory = name }
}

// TestRightsFollowTheConfiguration checks rights that the shipped roles don't show, for each configuration.
func TestRightsFollowTheConfiguration(t *testing.T) {
	const (
		deletes      = "delete certificatesigningrequests.certificates.k8s.io"
		approval     = "update certificatesigningrequests/approval.certificates.k8s.io"
		askReview    = "create subjectaccessreviews.authorization.k8s.io"
		approveNodes = "approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client-kubelet"
		signServing  = "sign signers.certificates.k8s.io kubernetes.io/kubelet-serving"
	)
	type change = func(*config.Configuration)
	resources, unasked := map[string]bool{}, []string(nil) // of all rows
	resourceOf := func(right string) string { return strings.Fields(right)[1] }
	custom := []config.Signer{{Name: "example.com/a", CA: config.CA{Secret: "b/a"}, Usages: []certificatesv1.KeyUsage{"server auth"}}}
	of := func(controllers string, more change) change {
		return func(c *config.Configuration) {
			c.Controllers = []string{controllers}
			more(c)
		}
	}
	for name, test := range map[string]struct {
		change     change
		have, lack []string
	}{
		"a custom signer": {
			of("signer", func(c *config.Configuration) { c.Signing.Signers = custom }),
			[]string{
				"sign signers.certificates.k8s.io example.com/a", "list secrets a in b", "create events.events.k8s.io in b",
				"update leases.coordination.k8s.io csr-controller-manager in n",
			},
			[]string{signServing, askReview, deletes},
		},
		"a dry run of all controllers": {
			of("*", func(c *config.Configuration) {
				c.DryRun, c.Signing.Secret, c.Signing.CreateIfMissing = []string{"*"}, "b/a", true
			}),
			[]string{"get certificatesigningrequests.certificates.k8s.io", askReview, "create events.events.k8s.io in default", "list secrets a in b"},
			[]string{approval, "update certificatesigningrequests/status.certificates.k8s.io", deletes, signServing, approveNodes, "create secrets in b"},
		},
		"approval rules without Services": {
			approvalRule(rules.SPIFFE),
			[]string{"approve signers.certificates.k8s.io example.com/a", "get serviceaccounts"}, []string{"get services"},
		},
		"machines": {preset(config.InventoryClusterAPI), []string{"list machines.cluster.x-k8s.io"}, nil},
		"machines of another cluster": {
			func(c *config.Configuration) {
				preset(config.InventoryClusterAPI)(c)
				c.Approval.Inventory.Kubeconfig = "/other"
			},
			[]string{"get leases.coordination.k8s.io in kube-node-lease"}, []string{"list machines.cluster.x-k8s.io"},
		},
		"static list": {
			func(c *config.Configuration) {
				c.Approval.KubeletServing.Enabled = true
				c.Approval.Inventory.Sources = []config.Source{{Static: &config.StaticSource{ConfigMap: "a/b"}}}
			},
			[]string{"list configmaps b in a", "watch configmaps b in a", "create events.events.k8s.io in a"}, []string{"get configmaps b in a"},
		},
		"approver and secure metrics, without leader election": {
			of("approver", func(c *config.Configuration) { c.MetricsSecure, c.LeaderElection.Enabled = true, false }),
			[]string{approveNodes, approval, "create tokenreviews.authentication.k8s.io", askReview},
			[]string{"get configmaps extension-apiserver-authentication in kube-system", "create leases.coordination.k8s.io in n"},
		},
		"a home of its own": {
			func(c *config.Configuration) {
				c.Home.Kubeconfig, c.Signing.Secret, c.Rotation.Enabled, c.MetricsSecure = "h", "b/a", true, true
			},
			[]string{
				"list secrets a in b of the home cluster", "get configmaps a-ledger in b of the home cluster", "create tokenreviews.authentication.k8s.io of the home cluster",
				"update leases.coordination.k8s.io csr-controller-manager in n of the home cluster", "watch signingauthorities.csr-controller-manager.io of the home cluster",
				"create events.events.k8s.io in default of the home cluster", "create events.events.k8s.io in default of the served cluster",
				"get certificatesigningrequests.certificates.k8s.io of the served cluster", signServing + " of the served cluster",
			},
			[]string{
				"list endpointslices.discovery.k8s.io in default of the served cluster", "list secrets a in b of the served cluster",
				"get signingauthorities.csr-controller-manager.io of the served cluster",
			},
		},
		"rotation of a custom signer, and approval rules with Services": { // no shipped role can name the signer
			func(c *config.Configuration) {
				approvalRule(rules.ServiceNames)(c)
				c.Rotation.Enabled, c.Signing.Signers = true, custom
			},
			[]string{"attest signers.certificates.k8s.io example.com/a", "get services"}, nil,
		},
	} {
		needed := map[string]bool{}
		for _, right := range Rights(configured(test.change), "n") {
			needed[right.String()], resources[resourceOf(right.String())] = !right.Optional, true
			if strings.Contains(right.String(), " a in b") && right.Manifest != "" || right.Name == "example.com/a" && right.Manifest != "" {
				t.Errorf("%s: no shipped role grants %q, but it names %s", name, right.String(), right.Manifest)
			}
		}
		for _, want := range test.have {
			if must, found := needed[want]; !found || !must && (want == askReview || strings.HasPrefix(want, "attest")) {
				t.Errorf("%s: asks for %q: %t, needs it: %t", name, want, found, must)
			}
		}
		unasked = append(unasked, test.lack...)
		for _, not := range test.lack {
			if _, found := needed[not]; found {
				t.Errorf("%s: asks for %q", name, not)
			}
		}
	}
	for _, right := range unasked {
		if !resources[resourceOf(right)] {
			t.Errorf("no configuration asks for a right like %q", right)
		}
	}
}
