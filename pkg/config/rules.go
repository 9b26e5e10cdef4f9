package config

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

// RuleTest is a test of the approval rules, which `csr-controller-manager rules test` runs.
type RuleTest struct {
	// Request is the name of a request in the files of the command.
	Request string `json:"request"`
	// Accepts lists the rules that accept the content of the request. If it is empty, no rule must accept it.
	Accepts []string `json:"accepts,omitempty"`
}

// CompileRules returns the approval rules, or every mistake in them.
func (c *Configuration) CompileRules() ([]*rules.Compiled, error) {
	m := &mistakes{}
	return c.compileRules(m), errors.Join(m.all.ToAggregate())
}

func (c *Configuration) compileRules(m *mistakes) (all []*rules.Compiled) {
	path := field.NewPath("approval", "rules")
	if len(c.Approval.Rules) == 0 {
		return nil
	}
	compiler, err := rules.NewCompiler(c.RequestLimits)
	if err != nil {
		m.check(err, path, "")
		return nil
	}
	seen := map[string]bool{}
	for _, rule := range c.Approval.Rules {
		at := path.Key(rule.Name)
		if seen[rule.Name] {
			m.all = append(m.all, field.Duplicate(at, rule.Name))
		}
		seen[rule.Name] = true
		m.signerName(at.Child("signerName"), rule.SignerName)
		compiled, found := compiler.Compile(rule, at)
		m.all = append(m.all, found...)
		all = append(all, compiled)
	}
	for i, test := range c.Approval.Tests {
		at := field.NewPath("approval", "tests").Index(i)
		m.require(test.Request != "", at.Child("request"), "name a request in the files of rules test")
		for j, name := range test.Accepts {
			m.unless(seen[name], at.Child("accepts").Index(j), name, "is not one of approval.rules")
		}
	}
	return all
}

// ruleWarnings returns a sentence for each approval rule that never looks at the requester, or at something that it allows.
func (c *Configuration) ruleWarnings() (warnings []string) {
	compiled, _ := c.CompileRules()
	for _, rule := range compiled {
		for _, content := range rule.Unread {
			warnings = append(warnings, fmt.Sprintf("approval rule %s allows %s, but no condition reads request.%s: every value is accepted",
				rule.Name, content, content))
		}
		if rule.IgnoresRequester {
			warnings = append(warnings, fmt.Sprintf("approval rule %s never looks at the requester: each user with the verb use on it, "+
				"such as cluster-admin, gets every certificate that it accepts; compare the request with requester, or keep the rule "+
				"for users who may have all of them", rule.Name))
		}
	}
	return warnings
}
