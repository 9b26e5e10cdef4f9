package static

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// nodesKey is the key in a ConfigMap that holds the rows.
const nodesKey = "nodes.yaml"

// Parse parses a YAML list of Rows. Its error joins a *RowError for each mistake.
func Parse(data []byte) (*Source, error) {
	list, err := document(data)
	if err != nil {
		return nil, err
	}
	rows, lines := make([]Row, len(list.Content)), make([]fieldLines, len(list.Content))
	var problems []*RowError
	for i, item := range list.Content {
		r := reader{row: i + 1, lines: fieldLines{"": item.Line}}
		r.readRow(item)
		rows[i], lines[i] = r.out, r.lines
		problems = append(problems, r.problems...)
	}
	s, more := compile(rows)
	for _, problem := range more {
		// A field that could not be read was reported already.
		if line, read := lines[problem.Row-1][problem.Field]; read {
			problem.Line, problems = line, append(problems, problem)
		}
	}
	slices.SortStableFunc(problems, func(a, b *RowError) int { return a.Line - b.Line })
	if len(problems) > 0 {
		return nil, join(problems)
	}
	return s, nil
}

// document returns the list in data.
func document(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, another yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: is empty: write [] for no rows", nodesKey)
	case err != nil:
		return nil, fmt.Errorf("%s: %s", nodesKey, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&another); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: want one YAML document", nodesKey)
	}
	list := doc.Content[0]
	if list.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("%s:%d: want a list of rows", nodesKey, list.Line)
	}
	return list, nil
}

// fieldLines holds the lines of a row's fields, and the line of the row itself under the empty name.
type fieldLines map[string]int

// reader reads one row and records the lines of its fields.
type reader struct {
	row      int
	out      Row
	lines    fieldLines
	problems []*RowError
}

func (r *reader) fail(node *yaml.Node, field, detail string) {
	r.problems = append(r.problems, &RowError{Line: node.Line, Row: r.row, Field: field, Detail: detail})
}

func (r *reader) readRow(node *yaml.Node) {
	if node.Kind != yaml.MappingNode {
		delete(r.lines, "") // the missing name is the same mistake
		r.fail(node, "", "want name or namePattern, and fields")
		return
	}
	seen := map[string]bool{}
	for pair := range slices.Chunk(node.Content, 2) { // a mapping has as many values as keys
		key, value := pair[0], pair[1]
		if seen[key.Value] {
			r.fail(key, key.Value, "is set twice")
			continue
		}
		seen[key.Value] = true
		r.readField(key, value)
	}
}

func (r *reader) readField(key, value *yaml.Node) {
	switch key.Value {
	case "name":
		r.out.Name = r.text(key.Value, value)
	case "namePattern":
		r.out.NamePattern = r.text(key.Value, value)
	case "dnsNames":
		r.out.DNSNames = r.texts(key.Value, value)
	case "suffixes":
		r.out.Suffixes = r.texts(key.Value, value)
	case "addresses":
		r.out.Addresses = r.texts(key.Value, value)
	case "shortNames":
		if value.Kind != yaml.ScalarNode || value.Tag != "!!bool" || value.Decode(&r.out.ShortNames) != nil {
			r.fail(value, key.Value, "is neither true nor false")
		}
	default:
		r.fail(key, fmt.Sprintf("%q", key.Value), "is not a field of a row")
	}
}

func (r *reader) text(field string, node *yaml.Node) string {
	if node.Kind != yaml.ScalarNode || node.Tag != "!!str" || node.Value == "" {
		r.fail(node, field, "is not a string: quote a value that looks like a number")
		if field == "name" || field == "namePattern" {
			delete(r.lines, "") // the missing name is the same mistake
		}
		return ""
	}
	r.lines[field] = node.Line
	return node.Value
}

func (r *reader) texts(field string, list *yaml.Node) []string {
	if list.Kind != yaml.SequenceNode {
		r.fail(list, field, "is not a list")
		return nil
	}
	values := make([]string, len(list.Content))
	for i, item := range list.Content {
		values[i] = r.text(fmt.Sprintf("%s[%d]", field, i), item)
	}
	return values
}
