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

// roleFolders lists the folders with roles, in the order of the page, and the purpose of each.
var roleFolders = []struct{ folder, title, purpose string }{
	{"rbac", "Always", "Every installation has these roles."},
	{"kubelet-serving", "Kubelet serving certificates", "Needed for `approval.kubeletServing`."},
	{"node-identity", "Node identity", "Needed for `approval.nodeClient.inventory` or `requireTokenBinding`."},
	{"inventory-cluster-api", "Machines of Cluster API", "Needed for the inventory `cluster-api`."},
	{"inventory-openshift", "Machines of OpenShift", "Needed for the inventory `openshift`."},
	{"node-block-list", "Block list", "Needed for `nodeBlockList`."},
	{"create-ca", "New signing CA", "Needed for `createIfMissing`."},
	{"rotation", "Rotation", "Needed for `rotation.enabled`."},
	{"kubectl-plugin", "Users of the kubectl plugin", "For people who use `kubectl csr`."},
	{"overlays/trust-files", "Trust files", "Needed to publish the trust bundle in `config/overlays/trust-files`."},
	{"overlays/split", "One identity for each controller", "`config/overlays/split` binds each of the roles above to the " +
		"ServiceAccount of the controller that needs it, and adds a role for each Lease."},
}

// roles returns the roles of the manifests: for each rule what it permits, and why.
func roles(root string) (string, error) {
	reasons := map[string]string{}
	if err := yaml.UnmarshalStrict(whyFile, &reasons); err != nil {
		return "", fmt.Errorf("why.yaml: %w", err)
	}
	var out strings.Builder
	used := map[string]bool{}
	for _, each := range roleFolders {
		objects, err := readObjects(filepath.Join(root, "config", filepath.FromSlash(each.folder)))
		if err != nil {
			return "", err
		}
		found, err := rolesIn(objects, reasons, used)
		if err != nil {
			return "", fmt.Errorf("config/%s: %w", each.folder, err)
		}
		fmt.Fprintf(&out, "### %s\n\n%s Folder: `config/%s`.\n\n%s", each.title, each.purpose, each.folder, found)
	}
	for key := range reasons {
		if !used[key] {
			return "", fmt.Errorf("no role has the rule %q", key)
		}
	}
	return out.String(), unlisted(root)
}

// rolesIn returns the table of the roles among objects, and a list of those that are not bound to commonIdentity. It marks
// the reasons that the roles have.
func rolesIn(objects []object, reasons map[string]string, used map[string]bool) (string, error) {
	rows, notes, found := newTable("role", "resources", "names", "verbs", "why"), "", false
	for _, role := range objects {
		if role.Kind != "Role" && role.Kind != "ClusterRole" {
			continue
		}
		found = true
		if err := role.addTo(rows, reasons, used); err != nil {
			return "", err
		}
		if bound := role.bound(objects); bound != "" {
			notes += fmt.Sprintf("- %s: %s\n", role.name(), bound)
		}
	}
	if !found {
		return "", errors.New("has no roles")
	}
	if notes != "" {
		notes += "\n"
	}
	return rows.String() + "\n" + notes, nil
}

// unlisted returns an error if a role is in none of roleFolders.
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
		for _, each := range roleFolders {
			if strings.HasPrefix(filepath.ToSlash(inside), each.folder+"/") {
				return err
			}
		}
		return cmp.Or(err, fmt.Errorf("%s: add its folder to roleFolders", path))
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

// name names a role: a Role with its namespace, and a ClusterRole without one.
func (o object) name() string {
	if o.Kind == "ClusterRole" {
		return quote(o.Metadata.Name)
	}
	return quote(o.Metadata.Name) + " in " + quote(o.Metadata.Namespace)
}

// commonIdentity is the ServiceAccount to which the manifests bind a role, unless the page says otherwise.
const commonIdentity = "ServiceAccount `csr-controller-manager`"

// bound says to whom objects bind the role, or nothing if that is commonIdentity.
func (o object) bound(objects []object) string {
	for _, binding := range objects {
		same := binding.Kind == "ClusterRoleBinding" || binding.Metadata.Namespace == o.Metadata.Namespace
		if binding.RoleRef.Kind != o.Kind || binding.RoleRef.Name != o.Metadata.Name || !same {
			continue
		}
		var names []string
		for _, subject := range binding.Subjects {
			names = append(names, fmt.Sprintf("%s `%s`", subject.Kind, subject.Name))
		}
		if bound := strings.Join(slices.Compact(names), ", "); bound != commonIdentity {
			return "bound to " + bound + "."
		}
		return ""
	}
	for label := range o.Metadata.Labels {
		if to, found := strings.CutPrefix(label, "rbac.authorization.k8s.io/aggregate-to-"); found {
			return fmt.Sprintf("Kubernetes adds it to the ClusterRole `%s`.", to)
		}
	}
	return "bind it to the users who need it."
}

// addTo adds a row for each rule of a role to rows, and marks the reasons that they have.
func (o object) addTo(rows *table, reasons map[string]string, used map[string]bool) error {
	name := o.name()
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
		rows.row(name, quoted(resources), shortNames(rule.ResourceNames), strings.Join(rule.Verbs, ", "), reasons[key])
		name = "" // once for each role
	}
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
