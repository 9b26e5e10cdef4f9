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
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

var update = flag.Bool("update", false, "write the fields and flags into docs/reference/configuration.md")

// TestReferencePage compares the fields and flags in docs/reference/configuration.md with the code. After a change of a
// field, "go test ./pkg/config -run TestReferencePage -update" writes them.
func TestReferencePage(t *testing.T) {
	file := filepath.FromSlash("../../docs/reference/configuration.md")
	page, err := os.ReadFile(file)
	expect.NoError(t, err)
	const first, last = "<!-- generated: fields -->", "<!-- end: fields -->"
	before, _, begins := strings.Cut(string(page), first)
	_, after, ends := strings.Cut(string(page), last)
	if !begins || !ends {
		t.Fatalf("%s has no %s and %s", file, first, last)
	}
	w := &reference{flags: NewFlags(Default()), comments: map[string]string{}, seen: map[reflect.Type]string{}}
	for _, folder := range []string{"../inventory/machine", "../inventory/static", "../csr", "../rules"} {
		maps.Copy(w.comments, readComments(os.DirFS(filepath.FromSlash(folder))))
	}
	maps.Copy(w.comments, comments())
	w.table(t, reflect.ValueOf(Default()).Elem(), "")
	w.others()
	want := before + first + "\n\n" + strings.TrimSpace(w.out.String()) + "\n\n" + last + after
	if *update {
		expect.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	expect.Equal(t, "docs/reference/configuration.md (run this test with -update)", string(page), want)
}

// reference writes the tables of the page.
type reference struct {
	out      strings.Builder
	flags    *Flags
	comments map[string]string
	seen     map[reflect.Type]string // where the fields of an object are described
}

// sections are the objects with a table of their own.
var sections = []string{"approval", "signing", "rotation", "cleaning"}

// table writes the table of v, an object at path, and those of the sections in it.
func (w *reference) table(t *testing.T, v reflect.Value, path string) {
	w.out.WriteString("| field | default | description |\n|---|---|---|\n")
	inner := w.rows(t, v, path)
	w.out.WriteString("\n")
	for i, section := range inner {
		fmt.Fprintf(&w.out, "### %s\n\n%s\n\n", sections[i], prose(w.about(section.Type())))
		w.table(t, section, sections[i])
	}
}

// rows writes the rows of the fields of v, an object at path, and returns the sections among them. The fields of an object
// are described once, also if several fields hold it.
func (w *reference) rows(t *testing.T, v reflect.Value, path string) (inner []reflect.Value) {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		at, kind := strings.TrimPrefix(path+"."+jsonName(field), "."), field.Type
		switch {
		case kind == reflect.TypeFor[metav1.TypeMeta]():
			w.row("`apiVersion`", "string", "Must be `"+APIVersion+"`.")
			w.row("`kind`", "string", "Must be `"+Kind+"`.")
			continue
		case field.Anonymous && w.seen[kind] != "":
			first, last := kind.Field(0), kind.Field(kind.NumField()-1)
			w.row(quote(path+"."+jsonName(first))+" to "+quote(jsonName(last)), "", "As in "+quote(w.seen[kind])+".")
			continue
		case field.Anonymous:
			w.seen[kind] = path
			w.rows(t, value, path)
			continue
		case jsonName(field) == "-":
			continue
		case slices.Contains(sections, at):
			inner = append(inner, value)
			continue
		}
		if kind.Kind() == reflect.Slice {
			kind = kind.Elem()
		}
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		text := description(w.comments, v.Type().Name(), field.Name)
		if text == "" {
			t.Errorf("%s.%s has no comment", v.Type().Name(), field.Name)
		}
		if kind.Kind() == reflect.Struct && kind.NumField() > 0 && kind != reflect.TypeFor[metav1.Duration]() {
			w.object(t, field, value, kind, at)
		} else {
			w.row(strings.TrimSpace(quote(at)+" "+w.flagOf(at)), cmp.Or(initial(field, value), typeOf(field.Type)), prose(text))
		}
	}
	return inner
}

// object writes the row of a field at path that holds an object or a list of objects, and the rows of their fields.
func (w *reference) object(t *testing.T, field reflect.StructField, value reflect.Value, kind reflect.Type, path string) {
	if field.Type.Kind() == reflect.Slice {
		path += "[]"
	}
	if written := w.seen[kind]; written != "" {
		w.row(quote(path), "", "As "+quote(written)+".")
		return
	}
	w.seen[kind] = path
	if kind.NumField() > 2 || field.Type.Kind() == reflect.Slice {
		w.row(quote(path), typeOf(field.Type), prose(w.about(kind)))
	}
	if value.Kind() != reflect.Struct {
		value = reflect.New(kind).Elem()
	}
	w.rows(t, value, path)
}

// about returns the comment of a type.
func (w *reference) about(kind reflect.Type) string {
	return withoutName(w.comments[kind.Name()], kind.Name())
}

// others writes the table of the flags that belong to no field. Flags with the same description share a row.
func (w *reference) others() {
	w.out.WriteString("### Other flags\n\n| flag | description |\n|---|---|\n")
	flags, last := "", "" // with the same description
	w.flags.VisitAll(func(flag *pflag.Flag) {
		if path := w.flags.fields[flag.Name]; path != "" && !strings.Contains(path, "[") {
			return
		}
		form, usage := pflag.UnquoteUsage(flag)
		if name := quote(strings.TrimSpace("--" + flag.Name + " " + form)); usage == last {
			flags += ", " + name
		} else {
			if last != "" {
				w.row(flags, prose(last))
			}
			flags, last = name, usage
		}
	})
	w.row(flags, prose(last))
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

// typeOf returns the type of a field for readers.
func typeOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return typeOf(t.Elem())
	case reflect.Slice:
		return typeOf(t.Elem()) + "s"
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

// FuzzParse checks that a file that a manager loads can be written again.
func FuzzParse(f *testing.F) {
	const header = "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"
	for _, body := range []string{
		"signing: {secret: ns/ca}\n",
		"controllers: ['-csrcleaner', '*']\nsigning: {certFile: a, keyFile: b}\n",
		"signing: {secret: ns/ca, signers: [{name: example.com/a, duration: 1h, usages: [client auth], forbiddenSubjects: []}]}\ncleaning: {retention: {pending: -1s}}\n",
		"signing: {secret: a/b}\napproval: {inventory: {sources: [{webhook: {url: 'https://inventory/nodes?token=secret', caFile: ca, timeout: 1s}}]}}\n",
		"signing: {secret: a/b}\napproval: {kubeletServing: {enabled: true}, inventory: {sources: [{static: {rows: [{name: a, addresses: [10.0.0.1]}]}}, {node: {}}]}}\n",
		"signing: {secret: a/b}\ndryRun: ['*']\nselfCheck: {interval: 0s}\nrotation: {enabled: true}\n",
	} {
		f.Add([]byte(header + body))
	}
	files, err := filepath.Glob("../../config/manager/config/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d configuration files, error %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := Default()
		if c.parse(data) != nil || len(c.validate(true, cel.New)) > 0 {
			return
		}
		if _, err := yaml.Marshal(c); err != nil {
			t.Error(err)
		}
	})
}

// TestEveryFlagIsDescribed checks that each flag has a description: that of the field with its tag, or one of its own.
func TestEveryFlagIsDescribed(t *testing.T) {
	NewFlags(Default()).VisitAll(func(flag *pflag.Flag) {
		expect.True(t, strings.HasSuffix(flag.Usage, ".") && !strings.ContainsAny(flag.Usage, "`["),
			"--%s is described as %q", flag.Name, flag.Usage)
	})
}
