package config

import (
	"flag"
	"slices"
	"testing"
)

// A flag that is defined but not noted would be missing in the help, and mistakes in it would not name it.
func TestEveryFlagIsNoted(t *testing.T) {
	t.Parallel()
	defined := newFlags(Default(), &meta{})
	var listed []string
	for _, group := range defined.groups {
		listed = append(listed, group.names...)
	}
	defined.set.VisitAll(func(each *flag.Flag) {
		if _, noted := defined.fields[each.Name]; !noted || !slices.Contains(listed, each.Name) {
			t.Errorf("--%s has no field or no group", each.Name)
		}
	})
}
