package controllers

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// object is a Role, a ClusterRole or a binding.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Rules             []rbacv1.PolicyRule `json:"rules"`
	RoleRef           rbacv1.RoleRef      `json:"roleRef"`
	Subjects          []rbacv1.Subject    `json:"subjects"`
}

// shipped returns all objects in a folder of config/.
func shipped(t *testing.T, folder string) []object {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "config", folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no roles: %v", err)
	}
	var all []object
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			var one object
			if err := documents.Decode(&one); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			all = append(all, one)
		}
	}
	return all
}

// granted returns the rights that the shipped roles give to the manager's ServiceAccount.
func granted(t *testing.T, folder string) []string {
	t.Helper()
	all := shipped(t, folder)
	var rights []string
	for _, binding := range all {
		if binding.RoleRef.Name == "" || !slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Name == "csr-controller-manager" }) {
			continue
		}
		found := false
		for _, role := range all {
			if role.Kind == binding.RoleRef.Kind && role.Name == binding.RoleRef.Name && (role.Kind == "ClusterRole" || role.Namespace == binding.Namespace) {
				found = true
				rights = append(rights, expand(role.Rules, binding.Namespace)...)
			}
		}
		if !found {
			t.Errorf("%s %s is bound, and not shipped", binding.RoleRef.Kind, binding.RoleRef.Name)
		}
	}
	return unique(rights)
}

func expand(rules []rbacv1.PolicyRule, namespace string) []string {
	var rights []string
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					for _, verb := range rule.Verbs {
						rights = append(rights, check.Right{Verb: verb, Group: group, Resource: resource, Name: name, Namespace: namespace}.String())
					}
				}
			}
		}
	}
	return rights
}

func unique(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// TestRightsAreWhatIsGranted checks that the shipped roles grant exactly the rights that the manager needs.
func TestRightsAreWhatIsGranted(t *testing.T) {
	t.Parallel()
	rights := Rights(configured(func(c *config.Configuration) {
		c.MetricsSecure = true
		c.Signing.Secret = "csr-controller-manager-system/csr-signer"
	}), "csr-controller-manager-system")
	var asked []string
	for _, right := range rights {
		asked = append(asked, right.String())
	}
	asked = unique(asked)
	if diff := cmp.Diff(granted(t, "rbac"), asked); diff != "" {
		t.Errorf("change the markers +kubebuilder:rbac and run make generate, or change Rights: granted (-) is not what "+
			"is asked for (+):\n%s", diff)
	}
	if len(asked) != len(rights) {
		t.Errorf("%d of %d rights are asked for twice", len(rights)-len(asked), len(rights))
	}
}

// TestComponentsGrantWhatIsAskedFor checks that a component's roles grant exactly the rights that its configuration
// adds.
func TestComponentsGrantWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	asked := func(change func(*config.Configuration)) []string {
		rights := Rights(configured(change), "csr-controller-manager-system")
		var texts []string
		for _, right := range rights {
			texts = append(texts, right.String())
		}
		return texts
	}
	nothing := asked(func(c *config.Configuration) { c.LeaderElection.Enabled = false })
	for folder, change := range map[string]func(*config.Configuration){
		"node-block-list": func(c *config.Configuration) { c.NodeBlockList = "csr-controller-manager-system/csr-node-block-list" },
		"node-identity":   func(c *config.Configuration) { c.Approval.NodeClient.RequireTokenBinding = true },
		"kubelet-serving": func(c *config.Configuration) { c.Approval.KubeletServing.Enabled = true },
	} {
		more := asked(func(c *config.Configuration) { c.LeaderElection.Enabled = false; change(c) })
		more = unique(slices.DeleteFunc(more, func(right string) bool { return slices.Contains(nothing, right) }))
		if diff := cmp.Diff(granted(t, folder), more); diff != "" {
			t.Errorf("%s: granted (-) is not what is asked for (+):\n%s", folder, diff)
		}
	}
	fromSecret := func(c *config.Configuration) { c.Signing.Secret = "csr-controller-manager-system/csr-signer" }
	more := asked(func(c *config.Configuration) { fromSecret(c); c.Signing.CreateIfMissing = true })
	more = slices.DeleteFunc(more, func(right string) bool { return slices.Contains(asked(fromSecret), right) })
	if diff := cmp.Diff(granted(t, "create-ca"), more); diff != "" {
		t.Errorf("create-ca: granted (-) is not what is asked for (+):\n%s", diff)
	}
	for _, preset := range []string{config.InventoryClusterAPI, config.InventoryOpenShift} {
		more := asked(func(c *config.Configuration) {
			c.LeaderElection.Enabled = false
			c.Approval.NodeClient.Inventory = preset
		})
		want := unique(slices.Concat(granted(t, "node-identity"), granted(t, "inventory-"+preset)))
		more = unique(slices.DeleteFunc(more, func(right string) bool { return slices.Contains(nothing, right) }))
		if diff := cmp.Diff(want, more); diff != "" {
			t.Errorf("%s: granted (-) is not what is asked for (+):\n%s", preset, diff)
		}
	}
}

// TestTheLedgerIsAllThatRotationAddsForASigner checks that the ledger's Role grants exactly the rights that rotation
// adds to a signer. In a dry run rotation adds none.
func TestTheLedgerIsAllThatRotationAddsForASigner(t *testing.T) {
	t.Parallel()
	asked := func(rotated bool, dry ...string) []string {
		rights := Rights(configured(func(c *config.Configuration) {
			c.Controllers, c.DryRun, c.Rotation.Enabled = []string{"signer"}, dry, rotated
			c.Signing.Secret = "csr-controller-manager-system/csr-signer"
		}), "n")
		var texts []string
		for _, right := range rights {
			texts = append(texts, right.String())
		}
		return texts
	}
	without := asked(false)
	more := unique(slices.DeleteFunc(asked(true), func(right string) bool { return slices.Contains(without, right) }))
	if diff := cmp.Diff(granted(t, "rotation/ledger"), more); diff != "" {
		t.Errorf("granted (-) is not what is asked for (+):\n%s", diff)
	}
	if diff := cmp.Diff(asked(false, "signer"), asked(true, "signer")); diff != "" {
		t.Errorf("a dry run asks for more:\n%s", diff)
	}
}

// TestRightsFollowTheConfiguration checks the rights for each configuration. They are the rights of the enabled
// controllers, with what the configuration adds.
func TestRightsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	resourceOf := func(right string) string { return strings.Fields(right)[1] }
	resources, unasked := map[string]bool{}, []string(nil) // of all rows
	for name, test := range map[string]struct {
		change  func(*config.Configuration)
		have    []string
		havenot []string
	}{
		"cleaner": {
			change:  func(c *config.Configuration) { c.Controllers = []string{"cleaner"}; c.LeaderElection.Enabled = false },
			have:    []string{"delete certificatesigningrequests.certificates.k8s.io"},
			havenot: []string{"list secrets a in b", "create leases.coordination.k8s.io in n", "create subjectaccessreviews.authorization.k8s.io"},
		},
		"a custom signer": {
			change: func(c *config.Configuration) {
				c.Controllers = []string{"signer"}
				c.Signing = config.Signing{Duration: c.Signing.Duration, MinRSABits: 2048, Signers: []config.Signer{{
					Name: "example.com/a", CA: config.CA{Secret: "b/a"}, Usages: []string{"server auth"},
				}}}
			},
			have: []string{
				"sign signers.certificates.k8s.io example.com/a", "list secrets a in b", "create events.events.k8s.io in b",
				"update leases.coordination.k8s.io csr-controller-manager in n",
			},
			havenot: []string{"sign signers.certificates.k8s.io kubernetes.io/kubelet-serving", "create subjectaccessreviews.authorization.k8s.io"},
		},
		"a dry run of all controllers": {
			change: func(c *config.Configuration) {
				c.DryRun, c.Signing.Secret, c.Signing.CreateIfMissing = []string{"*"}, "b/a", true
			},
			have: []string{
				"get certificatesigningrequests.certificates.k8s.io", "create subjectaccessreviews.authorization.k8s.io",
				"create events.events.k8s.io in default", "list secrets a in b",
			},
			havenot: []string{
				"update certificatesigningrequests/approval.certificates.k8s.io", "update certificatesigningrequests/status.certificates.k8s.io",
				"delete certificatesigningrequests.certificates.k8s.io", "sign signers.certificates.k8s.io kubernetes.io/kubelet-serving",
				"approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client-kubelet", "create secrets in b",
			},
		},
		"a dry run of the approver": {
			change: func(c *config.Configuration) { c.DryRun = []string{"approver"} },
			have:   []string{"delete certificatesigningrequests.certificates.k8s.io"},
			havenot: []string{
				"update certificatesigningrequests/approval.certificates.k8s.io", "approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client-kubelet",
			},
		},
		"a dry run of the cleaner": {
			change:  func(c *config.Configuration) { c.Controllers, c.DryRun = []string{"cleaner"}, []string{"cleaner"} },
			have:    []string{"list certificatesigningrequests.certificates.k8s.io", "create events.events.k8s.io in default"},
			havenot: []string{"delete certificatesigningrequests.certificates.k8s.io"},
		},
		"machines": {
			change: func(c *config.Configuration) { c.Approval.NodeClient.Inventory = config.InventoryClusterAPI },
			have:   []string{"list machines.cluster.x-k8s.io"},
		},
		"machines of another cluster": {
			change: func(c *config.Configuration) {
				c.Approval.NodeClient.Inventory, c.Approval.Inventory.Kubeconfig = config.InventoryClusterAPI, "/other"
			},
			have:    []string{"get leases.coordination.k8s.io in kube-node-lease"},
			havenot: []string{"list machines.cluster.x-k8s.io"},
		},
		"static list": {
			change: func(c *config.Configuration) {
				c.Approval.KubeletServing.Enabled = true
				c.Approval.Inventory.Sources = []config.Source{{Static: &config.StaticSource{ConfigMap: "a/b"}}}
			},
			have:    []string{"list configmaps b in a", "watch configmaps b in a", "create events.events.k8s.io in a"},
			havenot: []string{"get configmaps b in a"},
		},
		"approver and secure metrics": {
			change: func(c *config.Configuration) { c.Controllers, c.MetricsSecure = []string{"approver"}, true },
			have: []string{
				"approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client-kubelet",
				"create tokenreviews.authentication.k8s.io", "create subjectaccessreviews.authorization.k8s.io",
			},
			havenot: []string{"get configmaps extension-apiserver-authentication in kube-system"},
		},
	} {
		rights := Rights(configured(test.change), "n")
		index := map[string]check.Right{}
		for _, right := range rights {
			index[right.String()], resources[resourceOf(right.String())] = right, true
		}
		for _, want := range test.have {
			if _, found := index[want]; !found {
				t.Errorf("%s: does not ask for %q", name, want)
			}
		}
		unasked = append(unasked, test.havenot...)
		for _, not := range test.havenot {
			if _, found := index[not]; found {
				t.Errorf("%s: asks for %q", name, not)
			}
		}
		if right, found := index["create subjectaccessreviews.authorization.k8s.io"]; found && right.Optional {
			t.Errorf("%s: the approver does not work without reviews", name)
		}
	}
	for _, right := range unasked {
		if !resources[resourceOf(right)] {
			t.Errorf("no configuration asks for a right like %q", right)
		}
	}
}

// TestRightsNameTheirManifest checks that the manifest that the check command names grants the missing right.
func TestRightsNameTheirManifest(t *testing.T) {
	t.Parallel()
	all := Rights(configured(func(c *config.Configuration) {
		c.Signing.Secret, c.Signing.CreateIfMissing = "csr-controller-manager-system/csr-signer", true
		c.Signing.Signers = []config.Signer{{Name: "example.com/web", CA: config.CA{Secret: "ns/web"}, Usages: []string{"server auth"}}}
		c.Approval.KubeletServing.Enabled = true
		c.Approval.NodeClient.Inventory, c.Approval.NodeClient.ClusterName = config.InventoryClusterAPI, "lab"
		c.NodeBlockList, c.Rotation.Enabled, c.MetricsSecure = "csr-controller-manager-system/blocked", true, true
	}), "csr-controller-manager-system")
	got := map[string]string{}
	for _, right := range all {
		got[right.String()] = right.Manifest
	}
	for right, want := range map[string]string{
		"update certificatesigningrequests/approval.certificates.k8s.io": "config/rbac",
		"sign signers.certificates.k8s.io kubernetes.io/kubelet-serving": "config/rbac",
		"sign signers.certificates.k8s.io example.com/web":               "",
		"list secrets csr-signer in csr-controller-manager-system":       "config/rbac",
		"list secrets web in ns":                                         "",
		"create secrets in csr-controller-manager-system":                "config/create-ca",
		"list leases.coordination.k8s.io in kube-node-lease":             "config/node-identity",
		"list services":                                                        "config/kubelet-serving",
		"watch machines.cluster.x-k8s.io":                                      "config/inventory-cluster-api",
		"create tokenreviews.authentication.k8s.io":                            "config/rbac",
		"update signingauthorities/status.csr-controller-manager.io":           "config/rotation",
		"update configmaps csr-signer-ledger in csr-controller-manager-system": "config/rotation",
	} {
		manifest, asked := got[right]
		if !asked || manifest != want {
			t.Errorf("%s: asked %t, names %q, want %q", right, asked, manifest, want)
		}
	}
}

// TestRotationGrantsWhatIsAskedFor checks that the component's roles grant exactly the rights of a manager that only
// rotates.
func TestRotationGrantsWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	asked := func(enabled bool) []string {
		rights := Rights(configured(func(c *config.Configuration) {
			c.Controllers = []string{"*", "-approver", "-signer", "-cleaner"}
			c.LeaderElection.Enabled, c.Rotation.Enabled = false, enabled
			c.Signing.Secret = "csr-controller-manager-system/csr-signer"
		}), "n")
		var texts []string
		for _, right := range rights {
			texts = append(texts, right.String())
		}
		return unique(texts)
	}
	if diff := cmp.Diff(granted(t, "rotation"), asked(true)); diff != "" {
		t.Errorf("change config/rotation/cluster_role.yaml, or Rights: granted (-) is not what is asked for (+):\n%s", diff)
	}
	if off := asked(false); len(off) > 0 {
		t.Errorf("asked for without rotation: %v", off)
	}
}

// TestRotationAsksToAttestForCustomSigners checks the right to attest, which the API server requires for each
// ClusterTrustBundle of a signer. No shipped role can name custom signers, so the check command must.
func TestRotationAsksToAttestForCustomSigners(t *testing.T) {
	t.Parallel()
	rights := Rights(configured(func(c *config.Configuration) {
		c.LeaderElection.Enabled, c.Rotation.Enabled = false, true
		c.Signing.Signers = []config.Signer{{Name: "example.com/web", CA: config.CA{Secret: "csr-controller-manager-system/web"}, Usages: []string{"server auth"}}}
	}), "n")
	for _, right := range rights {
		if right.Verb == "attest" && strings.HasSuffix(right.Name, "example.com/web") && !right.Optional {
			return
		}
	}
	t.Errorf("nothing asks for attest on example.com/web: %v", rights)
}
