package reference

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// version is a version of a CustomResourceDefinition, as far as the page needs it.
type version struct {
	Columns []struct {
		Name, JSONPath, Description string
		Priority                    int
	} `json:"additionalPrinterColumns"`
	Schema struct {
		Root property `json:"openAPIV3Schema"`
	}
}

// property is a part of a schema.
type property struct {
	Type, Description, Format string
	Enum, Required            []string
	MaxItems, MaxLength       *int64
	Properties                map[string]property
	Items                     *property
	Rules                     []rule `json:"x-kubernetes-validations"`
}

// rule is what the API server checks.
type rule struct{ Message string }

// readVersion returns the version of the CustomResourceDefinition.
func readVersion(root string) (*version, error) {
	source, err := os.ReadFile(filepath.Join(root, "config", "crd", "csr-controller-manager.io_signingauthorities.yaml"))
	if err != nil {
		return nil, err
	}
	var definition struct {
		Spec struct{ Versions []version }
	}
	if err := yaml.Unmarshal(source, &definition); err != nil {
		return nil, err
	}
	if len(definition.Spec.Versions) != 1 {
		return nil, errors.New("want one version of the API")
	}
	return &definition.Spec.Versions[0], nil
}

// spec returns the fields of the spec of a SigningAuthority: a table for each object in it.
func spec(root string) (string, error) {
	found, err := readVersion(root)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	properties(&out, found.Schema.Root.Properties["spec"], "spec")
	return out.String(), nil
}

// properties writes the table of an object at path, and those of the objects in it.
func properties(out *strings.Builder, object property, path string) {
	fmt.Fprintf(out, "### %s\n\n", path)
	rows, inner := newTable("field", "type", "description"), []func(){}
	object.rows(rows, path, "", func(of property, path string) {
		inner = append(inner, func() { properties(out, of, path) })
	})
	out.WriteString(rows.String() + "\n")
	if strings.HasSuffix(path, "[]") { // the rules of other objects stand in the rows of their fields
		for _, rule := range object.Rules {
			fmt.Fprintf(out, "Rule: %s.\n\n", prose(rule.Message))
		}
	}
	for _, each := range inner {
		each()
	}
}

// rows adds the rows of the fields of o, an object at path, with prefix before their names. A small object has no table:
// its fields have rows here. later gets each other object.
func (o property) rows(rows *table, path, prefix string, later func(of property, path string)) {
	for _, name := range slices.Sorted(maps.Keys(o.Properties)) {
		field, at := o.Properties[name], path+"."+name
		description := prose(bareProperty(field.Description, name))
		for _, rule := range field.Rules {
			if rule.Message != "" {
				description += " Rule: " + prose(rule.Message) + "."
			}
		}
		object, required := field, ""
		if field.Items != nil {
			object, at = *field.Items, at+"[]"
		}
		if slices.Contains(o.Required, name) {
			required = ", required"
		}
		kind, small := typeOf(field), field.Items == nil && len(field.Properties) <= 3
		if len(object.Properties) > 0 && !small {
			later(object, at)
			kind = fmt.Sprintf("[%s](#%s)", kind, strings.NewReplacer(".", "", "[]", "").Replace(strings.ToLower(at)))
		}
		if !small || len(field.Properties) == 0 || required != "" {
			rows.row(quote(prefix+name), kind+most(field)+required, strings.TrimSpace(description))
		}
		if small {
			field.rows(rows, at, prefix+name+".", later)
		}
	}
}

// bareProperty returns the description of a property for a place where its name stands already. Go's name of a field
// differs from the property's only in upper case.
func bareProperty(description, name string) string {
	if first, _, _ := strings.Cut(description, " "); strings.EqualFold(first, name) {
		return bare(description, first)
	}
	return description
}

// typeOf returns the type of a property for readers.
func typeOf(of property) string {
	switch {
	case of.Items != nil:
		return of.Items.Type + "s"
	case of.Format == "date-time":
		return "time"
	case len(of.Enum) > 0:
		return quoted(slices.DeleteFunc(slices.Clone(of.Enum), func(value string) bool { return value == "" }))
	}
	return of.Type
}

// most returns the bound of a property for readers, or nothing if there is none.
func most(of property) string {
	if bound := cmp.Or(of.MaxItems, of.MaxLength); bound != nil {
		return fmt.Sprintf(" ≤ %d", *bound)
	}
	return ""
}

// columns returns the columns of kubectl get signingauthorities.
func columns(root string) (string, error) {
	found, err := readVersion(root)
	if err != nil {
		return "", err
	}
	var all []string
	for _, column := range found.Columns {
		text := fmt.Sprintf("%s (`%s`)", column.Name, column.JSONPath)
		if column.Priority > 0 {
			text += " with `-o wide`"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ") + ".", nil
}
