package reference

import (
	_ "embed" // why.yaml
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

//go:embed why.yaml
var whyFile []byte

// object is any of RBAC's objects in a manifest.
type object struct {
	Kind     string
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Rules    []rbacv1.PolicyRule
	RoleRef  rbacv1.RoleRef
	Subjects []rbacv1.Subject
}

// roleSections lists the folders with roles, in the order of the page, and what needs each.
var roleSections = []struct {
	title   string
	folders []roleFolder
}{
	{"Always", []roleFolder{{"rbac", "every installation"}}},
	{"Approver", []roleFolder{
		{"kubelet-serving", "`approval.kubeletServing`"},
		{"node-identity", "`approval.nodeClient.inventory` or `requireTokenBinding`"},
		{"approval-rules", "`approval.rules`"},
		{"example", "an approval rule, with names to change"},
		{"inventory-cluster-api", "the inventory `cluster-api`"},
		{"inventory-openshift", "the inventory `openshift`"},
		{"node-block-list", "`nodeBlockList`"},
		{"block-list-enforced", "`blockListEnforcement`"},
		{"overlays/authorization-files", "what writes the files of API servers"},
	}},
	{"Rotation", []roleFolder{
		{"create-ca", "`createIfMissing`"},
		{"rotation", "`rotation.enabled`"},
		{"overlays/trust-files", "its trust files"},
		{"hosted/published", "`spec.trust.secrets`, with names to change"},
	}},
	{"Users of the kubectl plugin", []roleFolder{{"kubectl-plugin", "people who use `kubectl csr`"}}},
	{"One identity for each controller", []roleFolder{{"overlays/split", "binds the roles above to the ServiceAccount of the " +
		"controller that needs them, and adds a role for each Lease"}}},
}

// roleFolder is a folder with roles, and what needs it.
type roleFolder struct{ name, need string }

// rolesPage writes the tables of roles. It marks the reasons that it has used, and keeps the role that first had some rights.
type rolesPage struct {
	reasons map[string]string
	used    map[string]bool
	seen    map[string]string
}

// roles returns the roles of the manifests: for each rule what it permits, and why.
func roles(t *testing.T) string {
	t.Helper()
	p := rolesPage{map[string]string{}, map[string]bool{}, map[string]string{}}
	if err := yaml.UnmarshalStrict(whyFile, &p.reasons); err != nil {
		t.Fatalf("why.yaml: %v", err)
	}
	var out strings.Builder
	var listed []string
	for _, section := range roleSections {
		rows, needs := newTable("role", "rights"), []string{}
		for _, folder := range section.folders {
			objects := readObjects(t, "config/"+folder.name)
			found := slices.DeleteFunc(slices.Clone(objects), func(o object) bool { return !o.isRole() })
			for _, role := range found {
				p.add(t, rows, role, strings.TrimSpace(role.name()+" "+role.bound(objects)))
				listed = append(listed, role.name())
			}
			expect.True(t, len(found) > 0, "config/%s has no roles", folder.name)
			needs = append(needs, fmt.Sprintf("`config/%s`: %s.", folder.name, folder.need))
		}
		fmt.Fprintf(&out, "### %s\n\n%s\n\n%s\n", section.title, strings.Join(needs, " "), rows)
	}
	for key := range p.reasons {
		expect.True(t, p.used[key], "no role has the rule %q", key)
	}
	for _, o := range readObjects(t, "config") {
		if o.isRole() && !slices.Contains(listed, o.name()) {
			t.Errorf("%s: add its folder to roleSections", o.name())
		}
	}
	return out.String()
}

func (o object) isRole() bool { return o.Kind == "Role" || o.Kind == "ClusterRole" }

// readObjects returns the objects of RBAC in the manifests below dir.
func readObjects(t *testing.T, dir string) (all []object) {
	t.Helper()
	if err := fs.WalkDir(os.DirFS(root), dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		for document := range strings.SplitSeq("\n"+read(t, path), "\n---\n") {
			var found object
			if strings.Contains("\n"+document, "\napiVersion: "+rbacv1.SchemeGroupVersion.String()+"\n") {
				err = errors.Join(err, yaml.Unmarshal([]byte(document), &found))
			}
			if len(found.Rules)+len(found.Subjects) > 0 {
				all = append(all, found)
			}
		}
		return err
	}); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return all
}

// name names a role: a Role as namespace/name, and a ClusterRole by its name.
func (o object) name() string {
	if o.Kind == "ClusterRole" {
		return quote(o.Metadata.Name)
	}
	return quote(o.Metadata.Namespace + "/" + o.Metadata.Name)
}

// commonIdentity is the ServiceAccount to which the manifests bind a role, unless the page says otherwise.
const commonIdentity = "`csr-controller-manager`"

// bound says in parentheses to whom objects bind the role, or nothing if that is commonIdentity.
func (o object) bound(objects []object) string {
	for _, binding := range objects {
		same := binding.Kind == "ClusterRoleBinding" || binding.Metadata.Namespace == o.Metadata.Namespace
		if binding.RoleRef.Kind != o.Kind || binding.RoleRef.Name != o.Metadata.Name || !same {
			continue
		}
		var names []string
		for _, subject := range binding.Subjects {
			names = append(names, quote(subject.Name))
		}
		if bound := strings.Join(slices.Compact(names), ", "); bound != commonIdentity {
			return "(" + bound + ")"
		}
		return ""
	}
	for label := range o.Metadata.Labels {
		if to, found := strings.CutPrefix(label, "rbac.authorization.k8s.io/aggregate-to-"); found {
			return fmt.Sprintf("(added to `%s`)", to)
		}
	}
	return "(not bound)"
}

// add adds the row of a role, titled name, to rows. If a role before it differs in names alone, the row refers to that one.
func (p rolesPage) add(t *testing.T, rows *table, role object, name string) {
	t.Helper()
	var rights, names []string
	like := ""
	for _, rule := range role.Rules {
		resources := slices.Concat(rule.Resources, rule.NonResourceURLs)
		for i, resource := range resources {
			if group := strings.Join(rule.APIGroups, ""); group != "" {
				resources[i] = resource + "." + group
			}
		}
		permits := strings.Join(rule.Verbs, ",") + " " + strings.Join(resources, ",")
		keys := []string{role.Metadata.Name + "/" + role.Metadata.Namespace + ": ", role.Metadata.Name + ": ", ""} // the most specific one first
		at := slices.IndexFunc(keys, func(key string) bool { return p.reasons[key+permits] != "" })
		if at < 0 {
			t.Errorf("say in why.yaml why %s has %s", role.Metadata.Name, permits)
			continue
		}
		reason := p.reasons[keys[at]+permits]
		p.used[keys[at]+permits] = true
		right := strings.Join(rule.Verbs, ", ") + " " + quoted(resources)
		if short := quoted(rule.ResourceNames); short != "" {
			right += " " + short
			names = append(names, short)
		}
		rights = append(rights, right+": "+reason+".")
		like += permits + ": " + reason + "\n"
	}
	if first := p.seen[like]; first != "" && len(rights) > 1 {
		rights = []string{"As " + first + ", for " + strings.Join(names, ", ") + "."}
	} else {
		p.seen[like] = role.name()
	}
	rows.row(name, strings.Join(rights, "<br>"))
}
