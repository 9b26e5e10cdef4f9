package commands

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

func TestHelpListsEveryFlagAndCommand(t *testing.T) {
	t.Parallel()
	parts := []string{"bootstrap-token ", "completion ", "explain ", "rules ", "write-trust ", "--version"}
	config.NewFlags(config.Default()).VisitAll(func(flag *pflag.Flag) { parts = append(parts, "--"+flag.Name+" ") })
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}} {
		var out bytes.Buffer
		may(t, Execute(t.Context(), args, &out))
		for _, part := range parts {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%v: %q is not in:\n%s", args, part, out.String())
			}
		}
	}
}

func TestEveryMistakeAtOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := Execute(t.Context(), []string{"chek", "--kube-api-qps=zz", "--kube-api-burst=0"}, &out)
	want := `bad configuration (--help lists the flags):
invalid argument "zz" for "--kube-api-qps" flag: strconv.ParseFloat: parsing "zz": invalid syntax
unexpected argument "chek"
--kube-api-burst: Invalid value: 0: must be 1 or more
signing: Required value: no signing CA: `
	if err == nil || !strings.HasPrefix(err.Error(), want) || out.Len() > 0 {
		t.Errorf("error %v, printed %q", err, out.String())
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := Execute(t.Context(), []string{"--version"}, &out); err != nil || out.String() != "csr-controller-manager "+VersionOrBuild()+"\n" {
		t.Errorf("error %v, printed %q", err, out.String())
	}
}

// TestCompletion checks that main prints each completion script unchanged, and that a script completes commands and flags.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"ex": "explain\n:4\n", "--node-b": "--node-block-list\n:4\n"} {
		var out bytes.Buffer
		if err := Execute(t.Context(), []string{"__completeNoDesc", args}, &out); err != nil || !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: %q, error %v", args, out.String(), err)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		var out bytes.Buffer
		err := Execute(t.Context(), []string{"completion", shell}, &out)
		script := strings.ReplaceAll(out.String(), "\u2026", "") // bash: in a long description, which main escapes
		if err != nil || len(script) < 1000 || script != ascii.Lines(script) {
			t.Errorf("%s: %d bytes, error %v, or the script is not ASCII", shell, len(script), err)
		}
	}
}

// Every text in the log is ASCII, even an error with a requester's text.
func TestLogIsASCII(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	logger := newLogger(0, &out)
	logger.Info("Decided", "subject", "CN=\u009b31m\u202e\u0435")
	logger.Error(errors.New("no \u202e"), "Failed")
	if at := strings.IndexFunc(out.String(), func(char rune) bool { return char != '\n' && (char < ' ' || char > '~') }); at >= 0 {
		t.Errorf("the log has a character that is not ASCII at %d: %q", at, out.String())
	}
	if !strings.Contains(out.String(), `"subject":"CN=\u009b31m\u202e\u0435"`) {
		t.Errorf("the log has lost what was written: %s", out.String())
	}
}
