package reference

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// readVersion returns the only version of the CustomResourceDefinition.
func readVersion(t *testing.T) apiextensionsv1.CustomResourceDefinitionVersion {
	t.Helper()
	var definition apiextensionsv1.CustomResourceDefinition
	err := yaml.Unmarshal([]byte(read(t, "config/crd/csr-controller-manager.io_signingauthorities.yaml")), &definition)
	if err != nil || len(definition.Spec.Versions) != 1 {
		t.Fatalf("%d versions of the API, error %v", len(definition.Spec.Versions), err)
	}
	return definition.Spec.Versions[0]
}

// spec returns the fields of the spec of a SigningAuthority: a table for each object in it.
func spec(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	properties(&out, readVersion(t).Schema.OpenAPIV3Schema.Properties["spec"], "spec")
	return out.String()
}

// properties writes the table of an object at path, and those of the objects in it.
func properties(out *strings.Builder, object apiextensionsv1.JSONSchemaProps, path string) {
	fmt.Fprintf(out, "### %s\n\n", path)
	rows, inner := newTable("field", "type", "description"), []func(){}
	addRows(rows, object, path, "", func(of apiextensionsv1.JSONSchemaProps, path string) {
		inner = append(inner, func() { properties(out, of, path) })
	})
	out.WriteString(rows.String() + "\n")
	if strings.HasSuffix(path, "[]") { // the rules of other objects stand in the rows of their fields
		for _, rule := range object.XValidations {
			fmt.Fprintf(out, "Rule: %s.\n\n", prose(rule.Message))
		}
	}
	for _, each := range inner {
		each()
	}
}

// addRows adds the rows of the fields of o, an object at path, with prefix before their names. A small object has no table:
// its fields have rows here. later gets each other object.
func addRows(
	rows *table, o apiextensionsv1.JSONSchemaProps, path, prefix string, later func(of apiextensionsv1.JSONSchemaProps, path string),
) {
	for _, name := range slices.Sorted(maps.Keys(o.Properties)) {
		field, at := o.Properties[name], path+"."+name
		description := field.Description
		if first, _, _ := strings.Cut(description, " "); strings.EqualFold(first, name) { // Go's name of the field
			description = bare(description, first)
		}
		description = prose(description)
		for _, rule := range field.XValidations {
			if rule.Message != "" {
				description += " Rule: " + prose(rule.Message) + "."
			}
		}
		object, suffix := field, ""
		if field.Items != nil {
			object, at = *field.Items.Schema, at+"[]"
		}
		if bound := cmp.Or(field.MaxItems, field.MaxLength); bound != nil {
			suffix = fmt.Sprintf(" ≤ %d", *bound)
		}
		required := slices.Contains(o.Required, name)
		if required {
			suffix += ", required"
		}
		kind, small := typeOf(field), field.Items == nil && len(field.Properties) <= 3
		if len(object.Properties) > 0 && !small {
			later(object, at)
			kind = fmt.Sprintf("[%s](#%s)", kind, strings.NewReplacer(".", "", "[]", "").Replace(strings.ToLower(at)))
		}
		if !small || len(field.Properties) == 0 || required {
			rows.row(quote(prefix+name), kind+suffix, strings.TrimSpace(description))
		}
		if small {
			addRows(rows, field, at, prefix+name+".", later)
		}
	}
}

// typeOf returns the type of a property for readers.
func typeOf(of apiextensionsv1.JSONSchemaProps) string {
	switch {
	case of.Items != nil:
		return of.Items.Schema.Type + "s"
	case of.Format == "date-time":
		return "time"
	case len(of.Enum) > 0:
		var values []string
		for _, value := range of.Enum {
			if text := strings.Trim(string(value.Raw), `"`); text != "" {
				values = append(values, text)
			}
		}
		return quoted(values)
	}
	return of.Type
}

// columns returns the columns of kubectl get signingauthorities.
func columns(t *testing.T) string {
	t.Helper()
	var all []string
	for _, column := range readVersion(t).AdditionalPrinterColumns {
		text := fmt.Sprintf("%s (`%s`)", column.Name, column.JSONPath)
		if column.Priority > 0 {
			text += " with `-o wide`"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ") + "."
}
