package config

import (
	"flag"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// As in kube-controller-manager the flag adds up when it is given twice; it still overrides the file as a whole.
func TestControllersGivenTwice(t *testing.T) {
	t.Parallel()
	configuration, err := load(t, "controllers: [signer]\nsigning: {secret: ns/ca}\n", "--controllers=approver", "--controllers=cleaner")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"approver", "cleaner"}, configuration.Controllers); diff != "" {
		t.Errorf("controllers (-want +got):\n%s", diff)
	}
}
