package commands

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
)

var updateHelp = flag.Bool("update-help", false, "write testdata/help.txt anew")

func TestHelpListsEveryFlagAndCommand(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--help"}, {"-h"}, {"help"}, {"--kube-api-qps=zz", "--help", "--nonsense"}, {"--nonsense", "--help"},
	} {
		var out bytes.Buffer
		if err := Execute(t.Context(), args, &out); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		if *updateHelp {
			if err := os.WriteFile("testdata/help.txt", out.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		golden, err := os.ReadFile("testdata/help.txt")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(golden), out.String()); diff != "" {
			t.Errorf("%v (-testdata/help.txt +got; go test ./commands -run Help -update-help):\n%s", args, diff)
		}
	}
}

func TestEveryMistakeAtOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := execute(t.Context(), []string{"chek", "--nonsense", "--kube-api-qps=zz", "--foo=1", "--kube-api-burst=0"}, &out, "testdata/none")
	want := `bad configuration (--help lists the flags):
unknown flag: --nonsense
unknown flag: --foo
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
	for _, args := range [][]string{{"--version"}, {"--kube-api-qps=zz", "--version"}} {
		var out bytes.Buffer
		if err := Execute(t.Context(), args, &out); err != nil || out.String() != "csr-controller-manager "+VersionOrBuild()+"\n" {
			t.Errorf("%v: error %v, printed %q", args, err, out.String())
		}
	}
}

// Completion lists each command and flag, and main prints its scripts unchanged.
func TestCompletion(t *testing.T) {
	t.Parallel()
	complete := func(args ...string) []string {
		var out bytes.Buffer
		if err := Execute(t.Context(), append([]string{"__completeNoDesc"}, args...), &out); err != nil {
			t.Fatal(err)
		}
		return strings.Fields(out.String())
	}
	if got := complete("ex"); !slices.Equal(got, []string{"explain", ":4"}) {
		t.Errorf("ex: %q", got)
	}
	if got := complete("--node-b"); !slices.Equal(got, []string{"--node-block-list", ":4"}) {
		t.Errorf("--node-b: %q", got)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		var out bytes.Buffer
		if err := Execute(t.Context(), []string{"completion", shell}, &out); err != nil || out.Len() < 1000 {
			t.Errorf("%s: %d bytes, error %v", shell, out.Len(), err)
		}
		script := strings.ReplaceAll(out.String(), "\u2026", "") // bash: in a long description, which main escapes
		if script != ascii.Lines(script) {
			t.Errorf("%s: the script is not ASCII", shell)
		}
	}
}
