package reference

import (
	"cmp"
	_ "embed" // why.yaml
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
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
	}},
	{"Rotation", []roleFolder{
		{"create-ca", "`createIfMissing`"},
		{"rotation", "`rotation.enabled`"},
		{"overlays/trust-files", "its trust files"},
	}},
	{"Users of the kubectl plugin", []roleFolder{{"kubectl-plugin", "people who use `kubectl csr`"}}},
	{"One identity for each controller", []roleFolder{{"overlays/split", "binds the roles above to the ServiceAccount of the " +
		"controller that needs them, and adds a role for each Lease"}}},
}

// roleFolder is a folder with roles, and what needs it.
type roleFolder struct{ name, need string }

// roles returns the roles of the manifests: for each rule what it permits, and why.
func roles(root string) (string, error) {
	reasons := map[string]string{}
	if err := yaml.UnmarshalStrict(whyFile, &reasons); err != nil {
		return "", fmt.Errorf("why.yaml: %w", err)
	}
	var out strings.Builder
	used, seen := map[string]bool{}, map[string]string{}
	for _, section := range roleSections {
		rows, needs := newTable("role", "rights"), []string{}
		for _, folder := range section.folders {
			objects, err := readObjects(filepath.Join(root, "config", filepath.FromSlash(folder.name)))
			if err != nil {
				return "", err
			}
			if err := addRoles(rows, objects, reasons, used, seen); err != nil {
				return "", fmt.Errorf("config/%s: %w", folder.name, err)
			}
			needs = append(needs, fmt.Sprintf("`config/%s`: %s.", folder.name, folder.need))
		}
		fmt.Fprintf(&out, "### %s\n\n%s\n\n%s\n", section.title, strings.Join(needs, " "), rows)
	}
	for key := range reasons {
		if !used[key] {
			return "", fmt.Errorf("no role has the rule %q", key)
		}
	}
	return out.String(), unlisted(root)
}

// addRoles adds the roles among objects to rows. It marks the reasons that they have, and adds them to seen.
func addRoles(rows *table, objects []object, reasons map[string]string, used map[string]bool, seen map[string]string) error {
	found := false
	for _, role := range objects {
		if role.Kind != "Role" && role.Kind != "ClusterRole" {
			continue
		}
		found = true
		if err := role.addTo(rows, strings.TrimSpace(role.name()+" "+role.bound(objects)), reasons, used, seen); err != nil {
			return err
		}
	}
	if !found {
		return errors.New("has no roles")
	}
	return nil
}

// unlisted returns an error if a role is in none of roleSections.
func unlisted(root string) error {
	return filepath.WalkDir(filepath.Join(root, "config"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil || !strings.Contains("\n"+string(source), "\nkind: Role\n") &&
			!strings.Contains("\n"+string(source), "\nkind: ClusterRole\n") {
			return err
		}
		inside, err := filepath.Rel(filepath.Join(root, "config"), path)
		for _, section := range roleSections {
			for _, folder := range section.folders {
				if strings.HasPrefix(filepath.ToSlash(inside), folder.name+"/") {
					return err
				}
			}
		}
		return cmp.Or(err, fmt.Errorf("%s: add its folder to roleSections", path))
	})
}

// readObjects returns the objects of RBAC in the manifests below dir.
func readObjects(dir string) ([]object, error) {
	var all []object
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" || entry.Name() == "kustomization.yaml" {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for document := range strings.SplitSeq("\n"+string(source), "\n---\n") {
			var found object
			if err := yaml.Unmarshal([]byte(document), &found); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if len(found.Rules)+len(found.Subjects) > 0 {
				all = append(all, found)
			}
		}
		return nil
	})
	return all, err
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

// addTo adds the row of a role, titled name, to rows, and marks the reasons that its rules have. Its rights are those of a
// role in seen, if they differ in names alone.
func (o object) addTo(rows *table, name string, reasons map[string]string, used map[string]bool, seen map[string]string) error {
	var rights, names []string
	like := ""
	for _, rule := range o.Rules {
		resources := slices.Concat(rule.Resources, rule.NonResourceURLs)
		for i, resource := range resources {
			if group := strings.Join(rule.APIGroups, ""); group != "" {
				resources[i] = resource + "." + group
			}
		}
		permits := strings.Join(rule.Verbs, ",") + " " + strings.Join(resources, ",")
		key := o.reason(reasons, permits)
		if key == "" {
			return errors.New("say in why.yaml why " + o.Metadata.Name + " has " + permits)
		}
		used[key] = true
		right := strings.Join(rule.Verbs, ", ") + " " + quoted(resources)
		if short := shortNames(rule.ResourceNames); short != "" {
			right += " " + short
			names = append(names, short)
		}
		rights = append(rights, right+": "+reasons[key]+".")
		like += permits + ": " + reasons[key] + "\n"
	}
	if first := seen[like]; first != "" && len(rights) > 1 {
		rights = []string{"As " + first + ", for " + strings.Join(names, ", ") + "."}
	} else {
		seen[like] = o.name()
	}
	rows.row(name, strings.Join(rights, "<br>"))
	return nil
}

// reason returns the key of reasons for what a role permits, or "": the most specific one.
func (o object) reason(reasons map[string]string, permits string) string {
	for _, key := range []string{o.Metadata.Name + "/" + o.Metadata.Namespace + ": ", o.Metadata.Name + ": ", ""} {
		if reasons[key+permits] != "" {
			return key + permits
		}
	}
	return ""
}

// shortNames returns names as code, with one pattern for those of the ConfigMaps of nodes. It is empty for all names.
func shortNames(names []string) string {
	var all []string
	for _, name := range names {
		if base, _, found := strings.Cut(name, "-nodes-"); found {
			name = base + "-nodes-00 … " + "0f"
		}
		all = append(all, name)
	}
	return quoted(slices.Compact(all))
}
