package main

import (
	"testing"
)

// TestScenarios checks that each scenario has both forms, and that names of experiments and entries are unique.
func TestScenarios(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, one := range scenarios() {
		for form, experiments := range map[string][]experiment{quick: one.quick, full: one.full} {
			if len(experiments) == 0 {
				t.Errorf("%s has no %s form", one.name, form)
			}
			for _, e := range experiments {
				for _, entry := range e.entries {
					name := one.name + "/" + form + "/" + e.name + "/" + entry.name
					if seen[name] || e.rounds < 1 {
						t.Errorf("%s: duplicate or without rounds", name)
					}
					seen[name] = true
				}
			}
		}
	}
}
