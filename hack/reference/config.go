package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// module is the path of the manager's module.
const module = "github.com/csr-controller-manager/csr-controller-manager/"

// fields returns the fields of the configuration file: a table for each object in it.
func fields(root string) (string, error) {
	w := &walker{root: root, comments: map[string]comments{}}
	defaults := reflect.ValueOf(config.Default()).Elem()
	if err := w.object(defaults.Type(), defaults, ""); err != nil {
		return "", err
	}
	return w.out.String(), nil
}

// walker writes the tables.
type walker struct {
	root     string
	out      strings.Builder
	comments map[string]comments // by package
}

// field is a field of an object, with its name in the file and its default, which may be invalid.
type field struct {
	reflect.StructField
	owner reflect.Type
	name  string
	value reflect.Value
}

// object writes the table of an object, and those of the objects in it.
func (w *walker) object(object reflect.Type, defaults reflect.Value, path string) error {
	if path != "" {
		comment, err := w.of(object, object.Name())
		if err != nil {
			return err
		}
		fmt.Fprintf(&w.out, "### %s\n\n%s\n\n", path, prose(about(comment, object.Name(), path)))
	}
	all := list(object, defaults)
	if err := w.rows(all, path); err != nil {
		return err
	}
	for _, f := range all {
		if inner, suffix := structure(f.Type); inner != nil {
			value := reflect.Indirect(f.value)
			if value.IsValid() && value.Kind() != reflect.Struct {
				value = reflect.Value{}
			}
			if err := w.object(inner, value, strings.TrimPrefix(path+"."+f.name, ".")+suffix); err != nil {
				return err
			}
		}
	}
	return nil
}

// rows writes the table of the fields of the object at path.
func (w *walker) rows(fields []field, path string) error {
	if len(fields) == 0 {
		return nil
	}
	rows := newTable("field", "type", "default", "description")
	for _, f := range fields {
		comment, err := w.comment(f)
		if err != nil {
			return err
		}
		if path == "" && f.name == "kind" {
			rows.row("`apiVersion`", "string", "", "Must be `"+config.APIVersion+"`.")
			rows.row("`kind`", "string", "", "Must be `"+config.Kind+"`.")
			continue
		}
		rows.row(quote(f.name), kind(f, path), initial(f), prose(bare(comment, f.Name)))
	}
	w.out.WriteString(rows.String() + "\n")
	return nil
}

// list returns the fields of an object, with those of what is inline in it.
func list(object reflect.Type, defaults reflect.Value) []field {
	var all []field
	for i := range object.NumField() {
		f := field{StructField: object.Field(i), owner: object}
		if defaults.IsValid() {
			f.value = defaults.Field(i)
		}
		tag := strings.Split(f.Tag.Get("json"), ",")
		f.name = tag[0]
		switch {
		case f.Type == reflect.TypeFor[metav1.TypeMeta]():
			all = append(all, field{name: "kind"})
		case f.Anonymous:
			all = append(all, list(f.Type, f.value)...)
		case f.name != "-":
			all = append(all, f)
		}
	}
	return all
}

// comment returns the comment of a field, which must have one.
func (w *walker) comment(f field) (string, error) {
	if f.owner == nil {
		return "", nil
	}
	return w.of(f.owner, f.owner.Name()+"."+f.Name)
}

// of returns the comment of a name in the package of object.
func (w *walker) of(object reflect.Type, name string) (string, error) {
	path := object.PkgPath()
	if w.comments[path] == nil {
		found, err := readComments(filepath.Join(w.root, filepath.FromSlash(strings.TrimPrefix(path, module))))
		if err != nil {
			return "", err
		}
		w.comments[path] = found
	}
	if comment := w.comments[path][name]; comment != "" {
		return comment, nil
	}
	return "", fmt.Errorf("%s: %s has no comment", path, name)
}

// structure returns the object that a field holds, or nil, and what its path has at the end.
func structure(t reflect.Type) (inner reflect.Type, suffix string) {
	if t == nil {
		return nil, ""
	}
	if t.Kind() == reflect.Slice {
		t, suffix = t.Elem(), "[]"
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[metav1.Duration]() {
		return nil, ""
	}
	return t, suffix
}

// kind returns the type of a field for readers: with a link, if it is an object.
func kind(f field, path string) string {
	if inner, suffix := structure(f.Type); inner != nil {
		name := "object"
		if suffix != "" {
			name = "list of objects"
		}
		anchor := strings.NewReplacer(".", "", "[]", "").Replace(strings.ToLower(path + f.name))
		return fmt.Sprintf("[%s](#%s)", name, anchor)
	}
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[metav1.Duration]():
		return "duration"
	case t.Kind() == reflect.Slice:
		return "list of strings"
	case t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.Bool:
		return "boolean"
	case t.Kind() == reflect.Int:
		return "integer"
	}
	return "string"
}

// initial returns the default of a field, or nothing if it is left out, empty or an object.
func initial(f field) string {
	value := f.value
	if !value.IsValid() || value.IsZero() && strings.Contains(f.Tag.Get("json"), ",omit") {
		return ""
	}
	switch given := value.Interface().(type) {
	case metav1.Duration:
		return quote(short(given.Duration))
	case []string:
		if given == nil {
			return "`[]`"
		}
		text, _ := json.Marshal(given)
		return quote(string(text))
	}
	if inner, _ := structure(value.Type()); inner != nil || value.Kind() == reflect.String && value.Len() == 0 {
		return ""
	}
	return quote(fmt.Sprint(value))
}

// short returns a duration without units that are zero.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// defaults returns the configuration that is in use without a file, as YAML in the order of the fields.
func defaults() string {
	var out strings.Builder
	fmt.Fprintf(&out, "```yaml\napiVersion: %s\nkind: %s\n", config.APIVersion, config.Kind)
	value := reflect.ValueOf(config.Default()).Elem()
	write(&out, value, "")
	out.WriteString("```")
	return out.String()
}

// write adds the fields of an object that are not left out.
func write(out *strings.Builder, object reflect.Value, indent string) {
	for _, f := range list(object.Type(), object) {
		if f.owner == nil || f.value.IsZero() && strings.Contains(f.Tag.Get("json"), ",omit") {
			continue
		}
		if f.value.Kind() == reflect.Struct && f.Type != reflect.TypeFor[metav1.Duration]() {
			before := out.Len()
			fmt.Fprintf(out, "%s%s:\n", indent, f.name)
			start := out.Len()
			if write(out, f.value, indent+"  "); out.Len() == start {
				text := out.String()[:before]
				out.Reset()
				out.WriteString(text)
			}
			continue
		}
		text, _ := json.Marshal(f.value.Interface())
		if string(text) == "null" {
			text = []byte("[]")
		}
		if given, is := f.value.Interface().(metav1.Duration); is {
			text = []byte(short(given.Duration))
		}
		fmt.Fprintf(out, "%s%s: %s\n", indent, f.name, text)
	}
}

// flags returns the manager's flags: a table for each group.
func flags() string {
	var out strings.Builder
	all := config.NewFlags(config.Default())
	for _, group := range all.Groups {
		rows := newTable("flag", "field", "default", "description")
		group.Flags.VisitAll(func(flag *pflag.Flag) {
			placeholder, usage := pflag.UnquoteUsage(flag)
			name := "`--" + strings.TrimSpace(flag.Name+" "+placeholder) + "`"
			if flag.Shorthand != "" {
				name = "`-" + flag.Shorthand + "`, " + name
			}
			value := flag.DefValue
			if d, err := time.ParseDuration(value); err == nil && flag.Value.Type() == "duration" {
				value = short(d)
			}
			rows.row(name, quote(all.Field(flag.Name)), quote(value), prose(usage))
		})
		fmt.Fprintf(&out, "### %s flags\n\n%s\n", group.Title, rows)
	}
	return out.String()
}
