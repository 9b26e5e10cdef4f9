package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestHelpShowsKubectlsFlags(t *testing.T) {
	t.Parallel()
	for command, parts := range map[string][]string{
		"":        {"Usage:\n  kubectl csr [command]", "--kubeconfig", "--context", "namespace of the manager (default csr-controller-manager-system, then kube-system)", "explain", "check", "rotation"},
		"check":   {"Usage:\n  kubectl csr check [--node NAME] [flags]", "--config file", "-v, --verbose", "-o, --output"},
		"explain": {"kubectl csr explain {NAME | -f FILE} [flags]", "--config file"},
	} {
		var out, aside bytes.Buffer
		if err := execute(t.Context(), append(strings.Fields(command), "--help"), &out, &aside); err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%q: %q is not in:\n%s", command, part, out.String())
			}
		}
		if aside.Len() > 0 {
			t.Errorf("%q: standard error has %q", command, aside.String())
		}
	}
}

// Errors come from the commands themselves: what is wrong with the command line, or that there is no API server.
func TestErrorsLeaveStandardOutputEmpty(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("KUBECONFIG", none)
	t.Setenv("HOME", t.TempDir())
	for args, want := range map[string]string{
		"chek":                           `unknown command "chek" for "kubectl csr"`,
		"check --bogus":                  "unknown flag: --bogus",
		"check -o xml":                   "xml",
		"check surplus":                  `unexpected argument "surplus"`,
		"check --config " + none:         none,
		"explain x --kubeconfig " + none: none,
	} {
		var out, aside bytes.Buffer
		err := execute(t.Context(), strings.Fields(args), &out, &aside)
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%s: error %v, want %q; printed %q", args, err, want, out.String())
		}
	}
}
