// Package static is the inventory source of rows that an administrator wrote, in the configuration or in a ConfigMap.
package static

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Row describes one node, by name, or several nodes, by namePattern. In dnsNames and suffixes, ${node} stands for the
// node's name, and ${group} for the text that the pattern's group of that name matched.
type Row struct {
	// Name is the name of one node.
	Name string `json:"name,omitempty"`
	// NamePattern is an expression (RE2) that must match the whole name of a node.
	NamePattern string `json:"namePattern,omitempty"`
	// DNSNames lists DNS names of the node.
	DNSNames []string `json:"dnsNames,omitempty"`
	// Suffixes lists DNS suffixes: every name below one of them belongs to the node.
	Suffixes []string `json:"suffixes,omitempty"`
	// Addresses lists IP addresses and CIDRs of the node.
	Addresses []string `json:"addresses,omitempty"`
	// ShortNames also permits the first label of each DNS name.
	ShortNames bool `json:"shortNames,omitempty"`
}

// RowError reports a mistake in one field of one row.
type RowError struct {
	Line   int    // of nodes.yaml; 0 without a file
	Row    int    // from 1
	Field  string // such as addresses[0]; empty for the row itself
	Detail string
}

func (e *RowError) Error() string {
	text := fmt.Sprintf("row %d: ", e.Row)
	if e.Line > 0 {
		text = fmt.Sprintf("%s:%d: ", nodesKey, e.Line) + text
	}
	if e.Field != "" {
		text += e.Field + " "
	}
	return text + e.Detail
}

var _ inventory.Owner = &Source{}

// Source knows nodes by rows. The row with the node's name counts, or else the first row whose pattern matches it.
type Source struct {
	from     string
	exact    map[string]*row
	patterns []*row
	owners   map[san.SAN]string // the node of the exact row that lists the value
}

// New returns a Source. Its error joins a *RowError for each mistake in rows.
func New(rows []Row) (*Source, error) {
	s, problems := compile(rows)
	return s, join(problems)
}

func join(problems []*RowError) error {
	errs := make([]error, len(problems))
	for i, problem := range problems {
		errs[i] = problem
	}
	return errors.Join(errs...)
}

// compile returns a Source, or the mistakes in rows.
func compile(rows []Row) (*Source, []*RowError) {
	s := &Source{from: "configuration", exact: map[string]*row{}, owners: map[san.SAN]string{}}
	var problems []*RowError
	patterns := map[string]int{}
	for i, in := range rows {
		out := &row{number: i + 1}
		problems = append(problems, out.read(in)...)
		if first := s.exact[in.Name]; in.Name != "" && first != nil {
			problems = append(problems, out.problem("name", "%q is already used in row %d", in.Name, first.number))
		}
		if first := patterns[in.NamePattern]; in.NamePattern != "" && first != 0 {
			problems = append(problems, out.problem("namePattern", "%q is already used in row %d", in.NamePattern, first))
		}
		switch {
		case in.Name != "":
			s.exact[in.Name] = out
			problems = append(problems, s.addOwner(in.Name)...)
		case out.pattern != nil:
			s.patterns, patterns[in.NamePattern] = append(s.patterns, out), i+1
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return s, nil
}

// Name implements inventory.Source.
func (s *Source) Name() string { return "static" }

// Lookup implements inventory.Source.
func (s *Source) Lookup(_ context.Context, node string, _ *csr.Request) (*inventory.Entry, error) {
	return s.lookup(node), nil
}

// Owner implements inventory.Owner. Only rows for one node have an owner.
func (s *Source) Owner(value san.SAN) (string, error) {
	node := s.owners[value]
	if node == "" {
		return "", nil
	}
	return fmt.Sprintf("%s (node %s)", s.lookup(node).Source, node), nil
}

// addOwner records the values that the row of node assigns to it alone. It returns those that another row assigns too.
func (s *Source) addOwner(node string) []*RowError {
	var problems []*RowError
	own := func(value san.SAN) {
		switch other := s.owners[value]; other {
		case "":
			s.owners[value] = node
		case node:
		default:
			problems = append(problems, s.exact[node].problem("", "lists %s, which row %d lists too: "+
				"only rows with namePattern may share names and addresses", value, s.exact[other].number))
		}
	}
	entry := s.lookup(node)
	for _, value := range entry.SANs {
		own(value)
		if short, _, found := strings.Cut(value.Name, "."); found && entry.ShortNames {
			own(san.SAN{Name: short})
		}
	}
	return problems
}

func (s *Source) lookup(node string) *inventory.Entry {
	if found := s.exact[node]; found != nil {
		return found.entry(s.from, map[string]string{nodeGroup: node})
	}
	// A pattern may match a text that can't be the name of a Node, such as a name in upper case.
	if len(validation.IsDNS1123Subdomain(node)) > 0 {
		return nil
	}
	for _, found := range s.patterns {
		matches := found.pattern.FindStringSubmatch(node)
		if matches == nil {
			continue
		}
		groups := map[string]string{nodeGroup: node}
		for i, name := range found.pattern.SubexpNames() {
			if name != "" {
				groups[name] = matches[i]
			}
		}
		return found.entry(s.from, groups)
	}
	return nil
}

// nodeGroup is the group that every template has. It stands for the node's name.
const nodeGroup = "node"

var reference = regexp.MustCompile(`\$\{([^{}]*)\}`)

// row is a parsed Row.
type row struct {
	number   int
	pattern  *regexp.Regexp  // nil for a name
	names    []string        // templates
	suffixes []string        // templates
	own      inventory.Entry // the parts without a template
}

// entry returns what the row says of a node, with groups in place of ${group}.
func (r *row) entry(from string, groups map[string]string) *inventory.Entry {
	entry := &inventory.Entry{
		Source: fmt.Sprintf("row %d of %s", r.number, from),
		SANs:   slices.Clone(r.own.SANs), Prefixes: slices.Clone(r.own.Prefixes), ShortNames: r.own.ShortNames,
		AnyTime: true, Shared: r.pattern != nil,
	}
	expand := func(template string) string {
		return reference.ReplaceAllStringFunc(template, func(ref string) string { return groups[ref[2:len(ref)-1]] })
	}
	// An expanded template may be no DNS name. No node owns such a text.
	for _, name := range r.names {
		_ = entry.AddName(expand(name))
	}
	for _, suffix := range r.suffixes {
		_ = entry.AddSuffix(expand(suffix))
	}
	return entry
}

// problem returns a mistake in a field of r.
func (r *row) problem(field, format string, args ...any) *RowError {
	return &RowError{Row: r.number, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// read fills r from in, and returns the mistakes in it.
func (r *row) read(in Row) []*RowError {
	problems := r.readName(in)
	groups := []string{nodeGroup}
	if r.pattern != nil {
		groups = append(groups, r.pattern.SubexpNames()...)
	} else if in.NamePattern != "" {
		groups = nil // unknown
	}
	check := func(field string, values []string, add func(string) error) {
		for i, value := range values {
			if err := add(value); err != nil {
				problems = append(problems, r.problem(fmt.Sprintf("%s[%d]", field, i), "%q: %v", value, err))
			}
		}
	}
	check("dnsNames", in.DNSNames, func(value string) error {
		return checkTemplate(value, groups, new(inventory.Entry).AddName)
	})
	check("suffixes", in.Suffixes, func(value string) error {
		return checkTemplate(value, groups, new(inventory.Entry).AddSuffix)
	})
	check("addresses", in.Addresses, r.own.AddAddress)
	r.names, r.suffixes, r.own.ShortNames = in.DNSNames, in.Suffixes, in.ShortNames
	return problems
}

// readName reads the name or the pattern of in.
func (r *row) readName(in Row) []*RowError {
	switch {
	case (in.Name == "") == (in.NamePattern == ""):
		return []*RowError{r.problem("", "set either name or namePattern")}
	case in.Name != "":
		if len(validation.IsDNS1123Subdomain(in.Name)) > 0 {
			return []*RowError{r.problem("name", "%q is not a valid Node name", in.Name)}
		}
		return nil
	}
	// First compile it alone, because a)|(b is no pattern. Then compile it for the whole name, with or without
	// anchors.
	pattern, err := regexp.Compile(in.NamePattern)
	if err == nil {
		pattern, err = regexp.Compile(`^(?:` + in.NamePattern + `)$`)
	}
	if err != nil {
		return []*RowError{r.problem("namePattern", "%q: %v", in.NamePattern, err)}
	}
	r.pattern = pattern
	if slices.Contains(pattern.SubexpNames(), nodeGroup) {
		return []*RowError{r.problem("namePattern", "%q: ${%s} stands for the whole name: use another name for the group",
			in.NamePattern, nodeGroup)}
	}
	return nil
}

// checkTemplate checks that template uses no other groups, and that add accepts the text in which they are replaced.
func checkTemplate(template string, groups []string, add func(string) error) error {
	for _, ref := range reference.FindAllStringSubmatch(template, -1) {
		if ref[1] == "" || groups != nil && !slices.Contains(groups, ref[1]) {
			return fmt.Errorf("%s is not a group of the pattern", ref[0])
		}
	}
	if rest := reference.ReplaceAllString(template, "x"); strings.Contains(rest, "$") {
		return fmt.Errorf("a $ is only allowed in ${group}")
	}
	return add(reference.ReplaceAllString(template, "x"))
}
