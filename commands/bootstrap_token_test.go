package commands

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"
)

var tokenNow = time.Date(2026, time.March, 1, 13, 0, 0, 0, time.FixedZone("CET", 3600))

// runBootstrapToken runs the command as Execute does, with a fixed clock.
func runBootstrapToken(out, aside io.Writer, args ...string) error {
	cmd := bootstrapTokenCommand(clocktesting.NewFakePassiveClock(tokenNow))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{}, args...)) // nil would stand for the arguments of the test binary
	cmd.SetOut(out)
	cmd.SetErr(aside)
	return cmd.Execute()
}

// printed runs the command, and returns its standard output and standard error.
func printed(t *testing.T, args ...string) (out, aside string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if err := runBootstrapToken(&stdout, &stderr, args...); err != nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String()
}

// TestBootstrapToken checks the Secret, the bindings, and the line with the token. No token is printed twice.
func TestBootstrapToken(t *testing.T) {
	t.Parallel()
	const group = "system:bootstrappers:node:13029f9e83d15b3d437c2a7568fc1ca7990ecf3ff79bef6da08f13ff5ae12af8"
	type values = map[string]string
	tokens := map[string]bool{}
	for _, test := range []struct {
		args     string
		want     values // beside the token
		ttl      string
		bindings []string
	}{
		{"--node worker-1", values{
			"description": "Bootstrap token for node worker-1", "expiration": "2026-03-01T13:00:00Z", "auth-extra-groups": group,
		}, "1h0m0s", nil},
		{"--kubeadm --node=worker-1 --ttl=90s", values{
			"description": "Bootstrap token for node worker-1", "expiration": "2026-03-01T12:01:30Z",
			"auth-extra-groups": group + ",system:bootstrappers:kubeadm:default-node-token",
		}, "1m30s", nil},
		{"--node worker-1 --rbac", values{
			"description": "Bootstrap token for node worker-1", "expiration": "2026-03-01T13:00:00Z", "auth-extra-groups": group,
		}, "1h0m0s", []string{
			":join ClusterRole system:node-bootstrapper", ":approve ClusterRole system:certificates.k8s.io:certificatesigningrequests:nodeclient",
		}},
	} {
		out, aside := printed(t, strings.Split(test.args, " ")...)
		documents := strings.Split(out, "---\n")[1:]
		var secret corev1.Secret
		if err := yaml.UnmarshalStrict([]byte(documents[0]), &secret); err != nil {
			t.Fatal(err)
		}
		id, text := secret.StringData["token-id"], secret.StringData["token-secret"]
		token := id + "." + text
		if !regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(token) || tokens[token] {
			t.Errorf("%s: token %q, one of %v", test.args, token, tokens)
		}
		tokens[token] = true
		test.want["token-id"], test.want["token-secret"] = id, text
		test.want["usage-bootstrap-authentication"], test.want["usage-bootstrap-signing"] = "true", "true"
		where := []string{secret.APIVersion, secret.Kind, secret.Namespace, secret.Name, string(secret.Type)}
		if diff := cmp.Diff([]string{"v1", "Secret", "kube-system", "bootstrap-token-" + id, "bootstrap.kubernetes.io/token"}, where); diff != "" {
			t.Errorf("%s: object (-want +got):\n%s", test.args, diff)
		}
		if diff := cmp.Diff(test.want, secret.StringData); diff != "" {
			t.Errorf("%s: data (-want +got):\n%s", test.args, diff)
		}
		if want := "# " + token + " is the token of node worker-1 for " + test.ttl + ", once the Secret has been created.\n"; aside != want {
			t.Errorf("%s: aside %q, want %q", test.args, aside, want)
		}
		if strings.Contains(out, token) || strings.Contains(documents[0], "creationTimestamp") {
			t.Errorf("%s: printed:\n%s", test.args, out)
		}
		var bindings []string
		for _, document := range documents[1:] {
			var binding rbacv1.ClusterRoleBinding
			if err := yaml.UnmarshalStrict([]byte(document), &binding); err != nil {
				t.Fatal(err)
			}
			bindings = append(bindings, strings.TrimPrefix(binding.Name, group)+" "+binding.RoleRef.Kind+" "+binding.RoleRef.Name)
			if diff := cmp.Diff([]rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: group}}, binding.Subjects); diff != "" {
				t.Errorf("subjects (-want +got):\n%s", diff)
			}
		}
		if diff := cmp.Diff(test.bindings, bindings); diff != "" {
			t.Errorf("%s: bindings (-want +got):\n%s", test.args, diff)
		}
	}
}

func TestBootstrapTokenMistakes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                     "--node is missing",
		"--node=system:node:a": `--node: "system:node:a" is not a valid node name`,
		"--node=Worker":        `--node: "Worker" is not a valid node name`,
		"--node=a --ttl=0":     "--ttl: 0s is too short",
		"--node=a --ttl=-1h":   "--ttl: -1h0m0s is too short",
		"--node=a x":           `unknown command "x"`,
		"--nodes=a":            "unknown flag: --nodes",
	} {
		var out, aside bytes.Buffer
		err := runBootstrapToken(&out, &aside, strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 || aside.Len() > 0 {
			t.Errorf("%s: error %v, want %q; printed %q and %q", args, err, want, out.String(), aside.String())
		}
	}
}

// broken is a file whose writes fail.
type broken struct{}

var errFull = errors.New("disk full")

func (broken) Write([]byte) (int, error) { return 0, errFull }

// TestBootstrapTokenReportsFailedWrites checks the error if the output cannot be written completely.
func TestBootstrapTokenReportsFailedWrites(t *testing.T) {
	t.Parallel()
	for _, err := range []error{runBootstrapToken(broken{}, io.Discard, "--node=a"), runBootstrapToken(io.Discard, broken{}, "--node=a")} {
		if !errors.Is(err, errFull) {
			t.Errorf("error %v", err)
		}
	}
}
