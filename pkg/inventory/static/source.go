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
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Row describes one node, by name, or several nodes, by namePattern. In dnsNames and suffixes, `${node}` stands for the
// node's name, and `${group}` for the text that the pattern's group of that name matched.
type Row struct {
	// Name is the name of one node.
	Name string `json:"name,omitempty" yaml:"name"`
	// NamePattern is an expression (RE2) that must match the whole name of a node.
	NamePattern string `json:"namePattern,omitempty" yaml:"namePattern"`
	// DNSNames lists DNS names of the node.
	DNSNames []string `json:"dnsNames,omitempty" yaml:"dnsNames"`
	// Suffixes lists DNS suffixes: each name below one belongs to the node.
	Suffixes []string `json:"suffixes,omitempty" yaml:"suffixes"`
	// Addresses lists IP addresses and CIDRs of the node.
	Addresses []string `json:"addresses,omitempty" yaml:"addresses"`
	// ShortNames also permits the first label of each DNS name.
	ShortNames bool `json:"shortNames,omitempty" yaml:"shortNames"`
}

var _ inventory.Owner = &Source{}

// Source knows nodes by rows. The row with the node's name counts, or else the first row whose pattern matches it.
type Source struct {
	from     string // in messages
	exact    map[string]*row
	patterns []*row
	owners   map[san.SAN]*row // the row with a name that lists the value
}

// New returns a Source, or every mistake in rows, which are at path.
func New(path *field.Path, rows []Row) (*Source, field.ErrorList) {
	s := &Source{from: "configuration", exact: map[string]*row{}, owners: map[san.SAN]*row{}}
	var mistakes field.ErrorList
	patterns := map[string]bool{}
	for i, in := range rows {
		at, out := path.Index(i), &row{Row: in, number: i + 1}
		mistakes = append(mistakes, out.parse(at)...)
		switch {
		case in.Name != "":
			if s.exact[in.Name] != nil {
				mistakes = append(mistakes, field.Duplicate(at.Child("name"), in.Name))
			}
			s.exact[in.Name] = out
			mistakes = append(mistakes, s.addOwner(at, out)...)
		case out.pattern != nil:
			if patterns[in.NamePattern] {
				mistakes = append(mistakes, field.Duplicate(at.Child("namePattern"), in.NamePattern))
			}
			s.patterns, patterns[in.NamePattern] = append(s.patterns, out), true
		}
	}
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	return s, nil
}

// addOwner records the values that r assigns to its node alone. It returns those that a row of another node assigns too.
func (s *Source) addOwner(at *field.Path, r *row) (mistakes field.ErrorList) {
	all := r.entry(s.from, r.templates(r.Name, nil)).SANs
	for _, value := range all {
		if short, _, found := strings.Cut(value.Name, "."); found && r.ShortNames {
			all = append(all, san.SAN{Name: short})
		}
	}
	for _, value := range all {
		if other := s.owners[value]; other != nil && other.Name != r.Name {
			mistakes = append(mistakes, field.Invalid(at, value.String(), fmt.Sprintf("row %d lists it too: "+
				"only rows with namePattern may share names and addresses", other.number)))
			continue
		}
		s.owners[value] = r
	}
	return mistakes
}

// Name implements inventory.Source.
func (s *Source) Name() string { return "static" }

// Lookup implements inventory.Source.
func (s *Source) Lookup(_ context.Context, node string, _ *csr.Request) (*inventory.Entry, error) {
	if found := s.exact[node]; found != nil {
		return found.entry(s.from, found.templates(node, nil)), nil
	}
	// A pattern may match a text that can't be the name of a Node, such as a name in upper case.
	if len(validation.IsDNS1123Subdomain(node)) > 0 {
		return nil, nil
	}
	for _, found := range s.patterns {
		if groups := found.pattern.FindStringSubmatch(node); groups != nil {
			return found.entry(s.from, found.templates(node, groups)), nil
		}
	}
	return nil, nil
}

// Owner implements inventory.Owner. Only rows for one node have an owner.
func (s *Source) Owner(value san.SAN) (string, error) {
	r := s.owners[value]
	if r == nil {
		return "", nil
	}
	return fmt.Sprintf("row %d of %s (node %s)", r.number, s.from, r.Name), nil
}

// row is a Row whose pattern and addresses are parsed.
type row struct {
	Row
	number  int
	pattern *regexp.Regexp  // nil for a name
	own     inventory.Entry // the parts without a template
}

// nodeGroup is the group that every template has. It stands for the node's name.
const nodeGroup = "node"

// templates returns a replacer of each ${group} in a template of r. groups are what the groups of its pattern matched.
func (r *row) templates(node string, groups []string) *strings.Replacer {
	pairs := []string{"${" + nodeGroup + "}", node}
	for i, text := range groups {
		if name := r.pattern.SubexpNames()[i]; name != "" {
			pairs = append(pairs, "${"+name+"}", text)
		}
	}
	return strings.NewReplacer(pairs...)
}

// entry returns what r says of a node.
func (r *row) entry(from string, templates *strings.Replacer) *inventory.Entry {
	entry := &inventory.Entry{
		Source: fmt.Sprintf("row %d of %s", r.number, from),
		SANs:   slices.Clone(r.own.SANs), Prefixes: slices.Clone(r.own.Prefixes), ShortNames: r.ShortNames,
		AnyTime: true, Shared: r.pattern != nil,
	}
	// An expanded template may be no DNS name. No node owns such a text.
	for _, name := range r.DNSNames {
		_ = entry.AddName(templates.Replace(name))
	}
	for _, suffix := range r.Suffixes {
		_ = entry.AddSuffix(templates.Replace(suffix))
	}
	return entry
}

// parse fills the parsed fields of r, and returns the mistakes in it. at is its path.
func (r *row) parse(at *field.Path) field.ErrorList {
	mistakes := r.parseName(at)
	if r.NamePattern != "" && r.pattern == nil {
		return mistakes // its groups are unknown
	}
	check := func(name string, values []string, add func(string) error) {
		for i, value := range values {
			if err := add(value); err != nil {
				mistakes = append(mistakes, field.Invalid(at.Child(name).Index(i), value, err.Error()))
			}
		}
	}
	var groups []string
	if r.pattern != nil {
		groups = slices.Repeat([]string{"x"}, len(r.pattern.SubexpNames()))
	}
	example := r.templates("x", groups)
	template := func(add func(string) error) func(string) error {
		return func(value string) error {
			value = example.Replace(value)
			if strings.Contains(value, "$") {
				return errors.New("use $ only in ${node}, and in ${group} for a group of the pattern")
			}
			return add(value)
		}
	}
	check("dnsNames", r.DNSNames, template(new(inventory.Entry).AddName))
	check("suffixes", r.Suffixes, template(new(inventory.Entry).AddSuffix))
	check("addresses", r.Addresses, r.own.AddAddress)
	return mistakes
}

// parseName parses the name or the pattern of r.
func (r *row) parseName(at *field.Path) field.ErrorList {
	switch {
	case (r.Name == "") == (r.NamePattern == ""):
		return field.ErrorList{field.Required(at, "set either name or namePattern")}
	case r.Name != "":
		if len(validation.IsDNS1123Subdomain(r.Name)) > 0 {
			return field.ErrorList{field.Invalid(at.Child("name"), r.Name, "is not a valid Node name")}
		}
		return nil
	}
	// First compile it alone, because a)|(b is no pattern. Then compile it for the whole name, with or without
	// anchors.
	pattern, err := regexp.Compile(r.NamePattern)
	if err == nil {
		pattern, err = regexp.Compile(`^(?:` + r.NamePattern + `)$`)
	}
	if err == nil && slices.Contains(pattern.SubexpNames(), nodeGroup) {
		err = errors.New("${node} stands for the whole name: use another name for the group")
	}
	if err != nil {
		return field.ErrorList{field.Invalid(at.Child("namePattern"), r.NamePattern, err.Error())}
	}
	r.pattern = pattern
	return nil
}
