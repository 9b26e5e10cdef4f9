package config_test

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

func command(file *string) *config.Command {
	own := pflag.NewFlagSet("look", pflag.ContinueOnError)
	own.StringVarP(file, "f", "f", "", "`file` to look at")
	return &config.Command{Flags: own, MaxArgs: 1}
}

func TestLoadCommand(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		file string
		rest []string
		want string
	}{
		"nothing, and no CA":         {},
		"flags around an argument":   {args: []string{"-f", "x", "name", "--kube-api-burst=7"}, file: "x", rest: []string{"name"}},
		"too many arguments":         {args: []string{"a", "b"}, rest: []string{"a"}, want: `unexpected argument "b"`},
		"a mistake in the manager's": {args: []string{"--kube-api-burst=0", "name"}, rest: []string{"name"}, want: "--kube-api-burst: Invalid value: 0: must be 1 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var file, problem string
			_, rest, err := config.Load(test.args, command(&file))
			if err != nil {
				problem = err.Error()
			}
			if problem != test.want || file != test.file || !slices.Equal(rest, test.rest) {
				t.Errorf("error %q, want %q; file %q; arguments %q", problem, test.want, file, rest)
			}
		})
	}
}
