package inventory

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Row is what an administrator wrote down of one node, by Name, or of several, by NamePattern. In DNSNames and Suffixes
// ${node} stands for the node's name, and ${group} for what the pattern's group of that name matched.
type Row struct {
	Name        string   `json:"name,omitempty"`
	NamePattern string   `json:"namePattern,omitempty"` // RE2, for the whole name
	DNSNames    []string `json:"dnsNames,omitempty"`
	Suffixes    []string `json:"suffixes,omitempty"`
	Addresses   []string `json:"addresses,omitempty"` // IP addresses and CIDRs
	ShortNames  bool     `json:"shortNames,omitempty"`
}

// RowError is what is wrong with one field of one row.
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

// Static knows nodes by rows: by a row of just that name, else by the first row whose pattern matches it.
type Static struct {
	from     string
	exact    map[string]*row
	patterns []*row
	owners   map[SAN]string // by what exact rows list, the first of them
}

// NewStatic returns an error that joins a *RowError for each mistake in rows.
func NewStatic(rows []Row) (*Static, error) {
	s, problems := compile(rows)
	return s, join(problems)
}

func join(problems []*RowError) error {
	errs := make([]error, 0, len(problems))
	for _, problem := range problems {
		errs = append(errs, problem)
	}
	return errors.Join(errs...)
}

func compile(rows []Row) (*Static, []*RowError) {
	s := &Static{from: "configuration", exact: map[string]*row{}, owners: map[SAN]string{}}
	var problems []*RowError
	patterns := map[string]int{}
	for i, in := range rows {
		out := &row{number: i + 1}
		problems = append(problems, out.read(in)...)
		if first := s.exact[in.Name]; in.Name != "" && first != nil {
			problems = append(problems, out.problem("name", "%q is that of row %d too", in.Name, first.number))
		}
		if first := patterns[in.NamePattern]; in.NamePattern != "" && first != 0 {
			problems = append(problems, out.problem("namePattern", "%q is that of row %d too", in.NamePattern, first))
		}
		switch {
		case in.Name != "":
			s.exact[in.Name] = out
			s.index(in.Name)
		case out.pattern != nil:
			s.patterns, patterns[in.NamePattern] = append(s.patterns, out), i+1
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return s, nil
}

// Name implements Source.
func (s *Static) Name() string { return "static" }

// Lookup implements Source.
func (s *Static) Lookup(_ context.Context, node string, _ *csr.Request) (*Entry, error) {
	return s.lookup(node), nil
}

// Owner implements Owner, by the rows of just one node.
func (s *Static) Owner(san SAN) (string, error) {
	node := s.owners[san]
	if node == "" {
		return "", nil
	}
	return fmt.Sprintf("%s (node %s)", s.lookup(node).Source, node), nil
}

func (s *Static) index(node string) {
	entry := s.lookup(node)
	for _, san := range entry.SANs {
		s.own(san, node)
		if short, _, found := strings.Cut(san.Name, "."); found && entry.ShortNames {
			s.own(SAN{Name: short}, node)
		}
	}
}

func (s *Static) own(san SAN, node string) {
	if s.owners[san] == "" {
		s.owners[san] = node
	}
}

func (s *Static) lookup(node string) *Entry {
	if found := s.exact[node]; found != nil {
		return found.entry(s.from, map[string]string{nodeGroup: node})
	}
	// A pattern may match what no Node can be called, such as a name in upper case.
	if len(validation.IsDNS1123Subdomain(node)) > 0 {
		return nil
	}
	for _, found := range s.patterns {
		if groups := found.match(node); groups != nil {
			return found.entry(s.from, groups)
		}
	}
	return nil
}

// row is a Row that has been read.
type row struct {
	number   int
	pattern  *regexp.Regexp
	names    []string
	suffixes []string
	own      owned
	short    bool
}

// match returns what the pattern's groups matched, and the node's name.
func (r *row) match(node string) map[string]string {
	found := r.pattern.FindStringSubmatch(node)
	if found == nil {
		return nil
	}
	groups := map[string]string{nodeGroup: node}
	for i, name := range r.pattern.SubexpNames() {
		if name != "" {
			groups[name] = found[i]
		}
	}
	return groups
}

func (r *row) entry(from string, groups map[string]string) *Entry {
	own := r.own.clone()
	// What a group makes of a template may be no DNS name: that is nobody's.
	for _, name := range r.names {
		_ = own.addName(expand(name, groups))
	}
	for _, suffix := range r.suffixes {
		_ = own.addSuffix(expand(suffix, groups))
	}
	return &Entry{
		Source: fmt.Sprintf("row %d of %s", r.number, from),
		SANs:   own.sans, Suffixes: own.suffixes, Prefixes: own.prefixes, ShortNames: r.short, AnyTime: true,
		Shared: r.pattern != nil,
	}
}

func (o owned) clone() owned {
	return owned{sans: slices.Clone(o.sans), suffixes: slices.Clone(o.suffixes), prefixes: slices.Clone(o.prefixes)}
}
