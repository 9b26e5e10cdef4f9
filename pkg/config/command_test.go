package config_test

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

func command(file *string) *config.Command {
	return &config.Command{
		Usage: "look [flags] [NAME]", About: "look looks.", MaxArgs: 1,
		Flags: func(set *flag.FlagSet) { set.StringVar(file, "f", "", "`file` to look at") },
	}
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
		"a mistake in the manager's": {args: []string{"--kube-api-burst=0", "name"}, rest: []string{"name"}, want: "--kube-api-burst: Invalid value: 0: is too low"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var file, problem string
			command := command(&file)
			_, err := config.LoadCommand(command, test.args, io.Discard)
			if err != nil {
				problem = err.Error()
			}
			if problem != test.want || file != test.file || !slices.Equal(command.Args, test.rest) {
				t.Errorf("error %q, want %q; file %q; arguments %q", problem, test.want, file, command.Args)
			}
		})
	}
}

func TestHelpOfACommand(t *testing.T) {
	t.Parallel()
	var file string
	var out bytes.Buffer
	if _, err := config.LoadCommand(command(&file), []string{"--help"}, &out); !errors.Is(err, config.ErrHelp) {
		t.Fatal(err)
	}
	want := "look looks.\n\nUsage: csr-controller-manager look [flags] [NAME]\n\nOf this command:\n  -f file\n        file to look at\n\nGeneric:\n  --config file\n"
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("help: %s", out.String())
	}
}
