package commands

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// oneRequest is a request in YAML.
const oneRequest = "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: csr-1}\n"

// TestExplainCommand runs the command with arguments that need no API server. No API server can be found, but files are
// explained.
func TestExplainCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "csr.yaml")
	if err := os.WriteFile(file, []byte(oneRequest), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	audit := filepath.Join(t.TempDir(), "audit.log")
	for name, test := range map[string]struct {
		args      []string
		out, want string
	}{
		"a file":        {args: []string{"-f", file, "--audit-log-path=" + audit}, out: "unknown: offline"},
		"help":          {args: []string{"--help"}, out: "Usage:\n  csr-controller-manager explain {NAME | -f FILE} [flags]"},
		"version":       {args: []string{"--version"}, out: "csr-controller-manager "},
		"nothing":       {want: "explain (--help lists the flags): give the NAME of a request, or -f FILE"},
		"both":          {args: []string{"-f", file, "x"}, want: "explain (--help lists the flags): give a NAME or -f FILE, not both"},
		"no such file":  {args: []string{"-f", file + "x"}, want: "-f: open "},
		"two names":     {args: []string{"x", "y"}, want: `unexpected argument "y"`},
		"a bad flag":    {args: []string{"x", "--kube-api-burst=0"}, want: "--kube-api-burst"},
		"no API server": {args: []string{"x"}, want: "find the API server: "},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := Execute(t.Context(), append([]string{"explain"}, test.args...), &out)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if !strings.Contains(out.String(), test.out) {
				t.Errorf("%q is not in:\n%s", test.out, out.String())
			}
		})
	}
	if _, err := os.Stat(audit); !os.IsNotExist(err) {
		t.Errorf("explain opens the audit log: %v", err)
	}
}
