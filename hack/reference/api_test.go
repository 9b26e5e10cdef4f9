package reference

import (
	"errors"
	"fmt"
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

// schema returns the fields of the spec or the status of a SigningAuthority: a table for each object in it.
func schema(root, part string) (string, error) {
	found, err := readVersion(root)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	properties(&out, found.Schema.Root.Properties[part], part)
	return out.String(), nil
}

// properties writes the table of an object, and those of the objects in it.
func properties(out *strings.Builder, object property, path string) {
	fmt.Fprintf(out, "### %s\n\n%s\n\n", path, prose(object.Description))
	rows := newTable("field", "type", "description")
	names := sortedKeys(object.Properties)
	for _, name := range names {
		inner := object.Properties[name]
		description := prose(bareProperty(inner.Description, name))
		for _, rule := range inner.Rules {
			if rule.Message != "" {
				description += " Rule: " + prose(rule.Message) + "."
			}
		}
		required := ""
		if slices.Contains(object.Required, name) {
			required = ", required"
		}
		rows.row(quote(name), typeOf(inner, path+name)+required, strings.TrimSpace(description))
	}
	out.WriteString(rows.String() + "\n")
	for _, rule := range rules(object, path) {
		fmt.Fprintf(out, "Rule: %s.\n\n", prose(rule.Message))
	}
	for _, name := range names {
		inner, suffix := object.Properties[name], ""
		if inner.Items != nil {
			// The description of a list is that of its field; the object in it has its own.
			inner, suffix = *inner.Items, "[]"
		}
		if len(inner.Properties) > 0 && name != "conditions" {
			properties(out, inner, path+"."+name+suffix)
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

// rules returns the rules of an object in a list. Those of another object stand in the row of its field.
func rules(object property, path string) []rule {
	if strings.HasSuffix(path, "[]") {
		return object.Rules
	}
	return nil
}

// typeOf returns the type of a property for readers, with its bounds, and with a link if it is an object.
func typeOf(of property, path string) string {
	anchor := strings.NewReplacer(".", "", "[]", "").Replace(strings.ToLower(path))
	switch {
	case of.Items != nil && of.Items.Type == "object":
		if strings.HasSuffix(path, "conditions") {
			return "list of conditions"
		}
		return fmt.Sprintf("[list of objects](#%s)", anchor) + most(of.MaxItems, "entries")
	case of.Items != nil:
		return "list of " + of.Items.Type + "s" + most(of.MaxItems, "entries")
	case len(of.Properties) > 0:
		return fmt.Sprintf("[object](#%s)", anchor)
	case of.Format == "date-time":
		return "time"
	case len(of.Enum) > 0:
		var all []string
		for _, value := range of.Enum {
			if value != "" {
				all = append(all, value)
			}
		}
		return "string: " + quoted(all)
	}
	return of.Type + most(of.MaxLength, "characters")
}

// most returns a bound for readers, or nothing if there is none.
func most(bound *int64, unit string) string {
	if bound == nil {
		return ""
	}
	return fmt.Sprintf(", at most %d %s", *bound, unit)
}

// columns returns what kubectl get shows of a SigningAuthority.
func columns(root string) (string, error) {
	found, err := readVersion(root)
	if err != nil {
		return "", err
	}
	rows := newTable("column", "field", "description")
	for _, column := range found.Columns {
		description := prose(column.Description)
		if column.Priority > 0 {
			description += " (with `-o wide`)"
		}
		rows.row(column.Name, quote(column.JSONPath), strings.TrimSpace(description))
	}
	return rows.String(), nil
}

// constants returns a table of the API's constants of a type, or whose names begin with it.
func constants(root, kind string) (string, error) {
	all, err := readConstants(filepath.Join(root, "api", "v1alpha1"), func(name, of string) bool {
		return of == kind || of == "" && strings.HasPrefix(name, kind)
	})
	if err != nil {
		return "", err
	}
	rows := newTable(strings.ToLower(kind), "meaning")
	count := 0
	for _, each := range all {
		if each.name == kind+"Annotation" {
			continue
		}
		value := quote(each.value)
		if value == "" {
			value = "(empty)"
		}
		rows.row(value, prose(bare(each.comment, each.name)))
		count++
	}
	if count == 0 {
		return "", fmt.Errorf("the API has no constants of %s", kind)
	}
	return rows.String(), nil
}

// sortedKeys returns the keys of all in order.
func sortedKeys[T any](all map[string]T) []string {
	var keys []string
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
