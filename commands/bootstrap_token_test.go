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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// TestBootstrapToken checks the Secret, and the line with the token. No token is printed twice.
func TestBootstrapToken(t *testing.T) {
	t.Parallel()
	const group = "system:bootstrappers:node:13029f9e83d15b3d437c2a7568fc1ca7990ecf3ff79bef6da08f13ff5ae12af8"
	tokens := map[string]bool{}
	for _, test := range []struct{ args, expires, groups, ttl string }{
		{"--node worker-1", "2026-03-01T13:00:00Z", group, "1h0m0s"},
		{"--kubeadm --node=worker-1 --ttl=90s", "2026-03-01T12:01:30Z", group + ",system:bootstrappers:kubeadm:default-node-token", "1m30s"},
	} {
		var out, aside bytes.Buffer
		if err := runBootstrapToken(&out, &aside, strings.Fields(test.args)...); err != nil {
			t.Fatal(err)
		}
		var secret corev1.Secret
		if err := yaml.UnmarshalStrict(out.Bytes(), &secret); err != nil {
			t.Fatal(err)
		}
		id, text := secret.StringData["token-id"], secret.StringData["token-secret"]
		token := id + "." + text
		if !regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(token) || tokens[token] {
			t.Errorf("%s: token %q, one of %v", test.args, token, tokens)
		}
		tokens[token] = true
		want := corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id},
			Type:       "bootstrap.kubernetes.io/token",
			StringData: map[string]string{
				"token-id": id, "token-secret": text, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
				"description": "Bootstrap token for node worker-1", "expiration": test.expires, "auth-extra-groups": test.groups,
			},
		}
		if diff := cmp.Diff(want, secret); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.args, diff)
		}
		line := "# " + token + " is the token of node worker-1 for " + test.ttl + ", once the Secret has been created.\n"
		if aside.String() != line || strings.Contains(out.String(), token) || strings.Contains(out.String(), "creationTimestamp") {
			t.Errorf("%s: aside %q, want %q; printed:\n%s", test.args, aside.String(), line, out.String())
		}
	}
}

func TestBootstrapTokenMistakes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                     `required flag(s) "node" not set`,
		"--node=":              `--node: "" is not a valid node name`,
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
