// Package reference tests the generated parts of docs/reference against the code: the metrics, the API, the roles and the approval
// rules. A part stands between "<!-- generated: NAME -->" and "<!-- end: NAME -->"; all else in a page is written by hand. With -update, as "make docs" runs it, the test writes the parts. The configuration has a test of its own, TestReferencePage in pkg/config.
package reference

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

var update = flag.Bool("update", false, "write the generated parts")

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	return expect.File(t, filepath.Join(root, path))
}

// parts returns the generated parts by name.
var parts = map[string]func(t *testing.T) string{
	"metrics":      metrics,
	"api-spec":     spec,
	"api-columns":  columns,
	"roles":        roles,
	"rule-presets": rulePresets,
	"rule-variables": func(*testing.T) string {
		rows := newTable("variable", "type", "holds")
		for _, each := range cel.Variables() {
			rows.row(quote(each.Path), quote(each.Type()), prose(each.Doc))
		}
		return rows.String()
	},
	"rule-libraries": func(*testing.T) string {
		rows := newTable("library", "functions")
		for _, each := range cel.Libraries() {
			rows.row(each.Name, prose(each.Functions))
		}
		return rows.String()
	},
}

// marked finds a generated part and its marks.
var marked = regexp.MustCompile(`(?s)<!-- generated: ([a-z-]+) -->\n.*?<!-- end: ([a-z-]+) -->`)

// TestPages compares the generated parts of the pages. Each part must be in one page.
func TestPages(t *testing.T) {
	t.Parallel()
	written := map[string]bool{}
	for _, page := range []string{"metrics.md", "api.md", "rbac.md", "approval-rules.md"} {
		path := filepath.Join("docs", "reference", page)
		before := read(t, path)
		after := marked.ReplaceAllStringFunc(before, func(old string) string {
			names := marked.FindStringSubmatch(old)
			part := parts[names[1]]
			if part == nil || written[names[1]] || names[1] != names[2] {
				t.Errorf("%s: part %q is unknown, stands elsewhere too, or ends as %q: add it to parts, or correct the mark", page, names[1], names[2])
				return old
			}
			written[names[1]] = true
			return fmt.Sprintf("<!-- generated: %s -->\n\n%s\n\n<!-- end: %[1]s -->", names[1], strings.TrimSpace(part(t)))
		})
		if diff := cmp.Diff(before, after); diff != "" && !*update {
			t.Errorf("%s: run make docs (-page +code):\n%s", page, diff)
		}
		if *update && !t.Failed() {
			if err := os.WriteFile(filepath.Join(root, path), []byte(after), 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	for name := range parts {
		expect.True(t, written[name], "no page has the part %q", name)
	}
}

// preset finds the presets of approval rules and their comments.
var preset = regexp.MustCompile(`(?m)^((?:\t// .*\n)+)\t(\w+) Preset = ("\w+")$`)

// rulePresets returns the presets, as their comments describe them.
func rulePresets(t *testing.T) string {
	t.Helper()
	rows := newTable("preset", "what it approves")
	for _, each := range preset.FindAllStringSubmatch(read(t, "pkg/rules/content.go"), -1) {
		rows.row(strings.ReplaceAll(each[3], `"`, "`"), prose(bare(strings.TrimSpace(strings.ReplaceAll(each[1], "\t// ", "")), each[2])))
	}
	return rows.String()
}

// table collects the rows of a Markdown table.
type table struct{ out strings.Builder }

// newTable returns a table with those columns.
func newTable(columns ...string) *table {
	t := &table{}
	t.row(columns...)
	t.out.WriteString(strings.Repeat("|---", len(columns)) + "|\n")
	return t
}

// row adds a row.
func (t *table) row(cells ...string) {
	t.out.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func (t *table) String() string { return t.out.String() }

// quote returns value as code, or nothing if it is empty.
func quote(value string) string {
	if value == "" {
		return ""
	}
	return "`" + value + "`"
}

// quoted returns values as code, separated by commas.
func quoted(values []string) string {
	var all []string
	for _, value := range values {
		all = append(all, quote(value))
	}
	return strings.Join(all, ", ")
}

// prose returns the text of a comment for a cell or a paragraph: on one line, with what Markdown would read as markup
// escaped, except in code.
func prose(text string) string {
	spans := strings.Split(strings.Join(strings.Fields(text), " "), "`")
	for i := range spans {
		if i%2 == 0 {
			spans[i] = strings.NewReplacer("*", `\*`, "|", `\|`, "<", "&lt;", "_", `\_`).Replace(spans[i])
		} else {
			spans[i] = strings.ReplaceAll(spans[i], "|", `\|`)
		}
	}
	return strings.Join(spans, "`")
}

// bare returns a comment about the Go name for a place where the name stands already: what follows the name, if that is a
// verb.
func bare(comment, name string) string {
	rest, found := strings.CutPrefix(comment, name+" ")
	verb, after, _ := strings.Cut(rest, " ")
	switch {
	case !found || verb == "as" || verb != "are" && !strings.HasSuffix(verb, "s"):
		return comment
	case verb == "is" || verb == "are":
		rest = after
	}
	return strings.ToUpper(rest[:1]) + rest[1:]
}
