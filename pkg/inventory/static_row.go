package inventory

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// nodeGroup is the group that every template has: the node's name.
const nodeGroup = "node"

var reference = regexp.MustCompile(`\$\{([^{}]*)\}`)

// expand puts groups into template.
func expand(template string, groups map[string]string) string {
	return reference.ReplaceAllStringFunc(template, func(ref string) string { return groups[ref[2:len(ref)-1]] })
}

func (r *row) problem(field, format string, args ...any) *RowError {
	return &RowError{Row: r.number, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// read returns what is wrong with in.
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
	check("dnsNames", in.DNSNames, func(value string) error { return checkTemplate(value, groups, new(owned).addName) })
	check("suffixes", in.Suffixes, func(value string) error { return checkTemplate(value, groups, new(owned).addSuffix) })
	check("addresses", in.Addresses, r.own.addAddress)
	r.names, r.suffixes, r.short = in.DNSNames, in.Suffixes, in.ShortNames
	return problems
}

func (r *row) readName(in Row) []*RowError {
	switch {
	case (in.Name == "") == (in.NamePattern == ""):
		return []*RowError{r.problem("", "want one of name and namePattern")}
	case in.Name != "":
		if len(validation.IsDNS1123Subdomain(in.Name)) > 0 {
			return []*RowError{r.problem("name", "%q: no Node can be called that", in.Name)}
		}
		return nil
	}
	// By itself first, as a)|(b is no pattern; then for the whole name, whether or not it says so.
	pattern, err := regexp.Compile(in.NamePattern)
	if err == nil {
		pattern, err = regexp.Compile(`^(?:` + in.NamePattern + `)$`)
	}
	if err != nil {
		return []*RowError{r.problem("namePattern", "%q: %v", in.NamePattern, err)}
	}
	r.pattern = pattern
	if slices.Contains(pattern.SubexpNames(), nodeGroup) {
		return []*RowError{r.problem("namePattern", "%q: ${%s} is the whole name: call the group otherwise", in.NamePattern, nodeGroup)}
	}
	return nil
}

// checkTemplate checks that template uses groups only, and that add takes what they may make of it.
func checkTemplate(template string, groups []string, add func(string) error) error {
	for _, ref := range reference.FindAllStringSubmatch(template, -1) {
		if ref[1] == "" || groups != nil && !slices.Contains(groups, ref[1]) {
			return fmt.Errorf("%s is no group of the pattern", ref[0])
		}
	}
	if rest := reference.ReplaceAllString(template, "x"); strings.Contains(rest, "$") {
		return fmt.Errorf("a $ must be that of a ${group}")
	}
	return add(reference.ReplaceAllString(template, "x"))
}
