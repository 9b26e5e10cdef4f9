package config

import (
	"testing"

	"github.com/spf13/pflag"
)

// A flag that is defined but not noted would not be named in mistakes.
func TestEveryFlagIsNoted(t *testing.T) {
	t.Parallel()
	flags := NewFlags(Default())
	flags.together(nil).VisitAll(func(flag *pflag.Flag) {
		if _, noted := flags.fields[flag.Name]; !noted && flag.Name != "help" {
			t.Errorf("--%s has no field", flag.Name)
		}
	})
}
