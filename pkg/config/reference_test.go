package config

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var update = flag.Bool("update", false, "write the fields and flags into docs/reference/configuration.md")

// TestReferencePage compares the fields and flags in docs/reference/configuration.md with the code. After a change of a
// field, "go test ./pkg/config -run TestReferencePage -update" writes them.
func TestReferencePage(t *testing.T) {
	t.Parallel()
	file := filepath.FromSlash("../../docs/reference/configuration.md")
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const first, last = "<!-- generated: fields -->", "<!-- end: fields -->"
	before, _, begins := strings.Cut(string(page), first)
	_, after, ends := strings.Cut(string(page), last)
	if !begins || !ends {
		t.Fatalf("%s has no %s and %s", file, first, last)
	}
	w := &reference{flags: NewFlags(Default()), comments: map[string]string{}, seen: map[reflect.Type]string{}}
	for _, folder := range []string{"../inventory/machine", "../inventory/static", "../csr"} {
		maps.Copy(w.comments, readComments(os.DirFS(filepath.FromSlash(folder))))
	}
	maps.Copy(w.comments, comments())
	w.object(t, reflect.ValueOf(Default()).Elem(), "")
	w.others()
	want := before + first + "\n\n" + strings.TrimSpace(w.out.String()) + "\n\n" + last + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(want, string(page)); diff != "" {
		t.Errorf("run this test with -update (-want +page):\n%s", diff)
	}
}

// reference writes the tables of the page.
type reference struct {
	out      strings.Builder
	flags    *Flags
	comments map[string]string
	seen     map[reflect.Type]string // where an object has its table
}

// object writes the table of v, an object at path, and those of the objects in it. An object has one table, also if
// several fields hold it.
func (w *reference) object(t *testing.T, v reflect.Value, path string) {
	w.seen[v.Type()] = path
	if path != "" {
		fmt.Fprintf(&w.out, "### %s\n\n%s\n\n", path, prose(withoutName(w.comments[v.Type().Name()], v.Type().Name())))
	}
	if v.NumField() > 0 {
		w.out.WriteString("| field, flag | default or type | description |\n|---|---|---|\n")
	}
	var inner []func()
	if w.rows(t, v, path, &inner); v.NumField() > 0 {
		w.out.WriteString("\n")
	}
	for _, each := range inner {
		each()
	}
}

// rows writes the rows of the fields of v, and adds what writes their objects to inner.
func (w *reference) rows(t *testing.T, v reflect.Value, path string, inner *[]func()) {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Type == reflect.TypeFor[metav1.TypeMeta]():
			w.row("`apiVersion`", "string", "Must be `"+APIVersion+"`.")
			w.row("`kind`", "string", "Must be `"+Kind+"`.")
			continue
		case field.Anonymous && w.seen[field.Type] != "":
			first, last := field.Type.Field(0), field.Type.Field(field.Type.NumField()-1)
			w.row(quote(jsonName(first))+" to "+quote(jsonName(last)), "", fmt.Sprintf("As in [%s](%s).", w.seen[field.Type], anchor(w.seen[field.Type])))
			continue
		case field.Anonymous:
			w.seen[field.Type] = path
			w.rows(t, value, path, inner)
			continue
		case name == "-":
			continue
		}
		at, kind := strings.TrimPrefix(path+"."+name, "."), field.Type
		if kind.Kind() == reflect.Slice {
			kind = kind.Elem()
		}
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		shown := cmp.Or(initial(field, value), typeOf(field.Type))
		if kind.Kind() == reflect.Struct && kind != reflect.TypeFor[metav1.Duration]() {
			if field.Type.Kind() == reflect.Slice {
				at += "[]"
			}
			if _, written := w.seen[kind]; !written {
				w.seen[kind] = at
				object := reflect.New(kind).Elem()
				if value.Kind() == reflect.Struct {
					object = value
				}
				*inner = append(*inner, func() { w.object(t, object, at) })
			}
			shown = fmt.Sprintf("[%s](%s)", strings.TrimSuffix(typeOf(field.Type), " of objects"), anchor(w.seen[kind]))
		}
		text := description(w.comments, v.Type().Name(), field.Name)
		if text == "" {
			t.Errorf("%s.%s has no comment", v.Type().Name(), field.Name)
		}
		w.row(strings.TrimSpace(quote(name)+" "+w.flagOf(at)), shown, prose(text))
	}
}

// others writes the table of the flags that belong to no field.
func (w *reference) others() {
	w.out.WriteString("### Other flags\n\n| flag | description |\n|---|---|\n")
	for _, group := range w.flags.Groups {
		group.Flags.VisitAll(func(flag *pflag.Flag) {
			if path := w.flags.fields[flag.Name]; path == "" || strings.Contains(path, "[") {
				form, usage := pflag.UnquoteUsage(flag)
				fmt.Fprintf(&w.out, "| `--%s` | %s |\n", strings.TrimSpace(flag.Name+" "+form), prose(usage))
			}
		})
	}
}

// flagOf returns the flag of the field at path.
func (w *reference) flagOf(path string) string {
	for name, field := range w.flags.fields {
		if field == path {
			return quote(strings.Replace("--"+name, "--v", "-v", 1))
		}
	}
	return ""
}

func (w *reference) row(cells ...string) {
	w.out.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// anchor returns a link to the table of the object at path.
func anchor(path string) string {
	return "#" + strings.NewReplacer(".", "", "[", "", "]", "").Replace(strings.ToLower(path))
}

// typeOf returns the type of a field for readers.
func typeOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return typeOf(t.Elem())
	case reflect.Slice:
		return "list of " + typeOf(t.Elem()) + "s"
	case reflect.Struct:
		if t == reflect.TypeFor[metav1.Duration]() {
			return "duration"
		}
		return "object"
	case reflect.Float64:
		return "number"
	case reflect.Bool:
		return "boolean"
	case reflect.Int:
		return "integer"
	}
	return "string"
}

// initial returns the default of a field, or nothing if the field is left out, empty or an object.
func initial(field reflect.StructField, value reflect.Value) string {
	switch given := value.Interface().(type) {
	case metav1.Duration:
		if given.Duration == 0 && strings.Contains(field.Tag.Get("json"), ",omit") {
			return ""
		}
		return quote(zeroUnit.ReplaceAllString(given.Duration.String(), "$1"))
	case []string:
		if len(given) > 0 {
			text, _ := json.Marshal(given)
			return quote(string(text))
		}
		return ""
	}
	if kind := value.Kind(); kind == reflect.Struct || kind == reflect.Slice || kind == reflect.Pointer ||
		value.IsZero() && (kind == reflect.String || strings.Contains(field.Tag.Get("json"), ",omit")) {
		return ""
	}
	return quote(fmt.Sprint(value))
}

// zeroUnit matches the units of a duration that are zero.
var zeroUnit = regexp.MustCompile(`([hm])(?:0m)?0s$`)

func quote(value string) string {
	if value == "" {
		return ""
	}
	return "`" + value + "`"
}

// prose returns text for a cell or a paragraph, with what Markdown would read as markup escaped, except in code.
func prose(text string) string {
	spans := strings.Split(strings.TrimSpace(text), "`")
	for i := range spans {
		if i%2 == 0 {
			spans[i] = strings.NewReplacer("*", `\*`, "|", `\|`, "<", "&lt;", "_", `\_`).Replace(spans[i])
		} else {
			spans[i] = strings.ReplaceAll(spans[i], "|", `\|`)
		}
	}
	return strings.Join(spans, "`")
}
