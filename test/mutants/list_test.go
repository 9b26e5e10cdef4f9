package main

import "testing"

// A rule whose text was moved would not be removed, and only the nightly run would notice.
func TestEveryMutationApplies(t *testing.T) {
	t.Parallel()
	for _, list := range mutations {
		for _, each := range list {
			if _, err := each.applied("../.."); err != nil {
				t.Errorf("%s: %v", each.rule, err)
			}
		}
	}
}
