package config

import (
	"testing"

	"github.com/spf13/pflag"
)

// Each defined flag must also be in the list of flags. Otherwise errors could not name it.
func TestEveryFlagIsNoted(t *testing.T) {
	t.Parallel()
	flags := NewFlags(Default())
	flags.together().VisitAll(func(flag *pflag.Flag) {
		if _, noted := flags.fields[flag.Name]; !noted && flag.Name != "help" {
			t.Errorf("--%s has no field", flag.Name)
		}
	})
}
