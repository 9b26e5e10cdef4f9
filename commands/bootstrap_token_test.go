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

func TestBootstrapToken(t *testing.T) {
	t.Parallel()
	const group = "system:bootstrappers:node:13029f9e83d15b3d437c2a7568fc1ca7990ecf3ff79bef6da08f13ff5ae12af8"
	for name, test := range map[string]struct {
		args []string
		want map[string]string // beside the token
		last string
	}{
		"a node": {
			args: []string{"--node", "worker-1"}, last: "is the token of node worker-1 for 1h0m0s, once the Secret has been created.\n",
			want: map[string]string{"description": "Bootstrap token for node worker-1", "expiration": "2026-03-01T13:00:00Z", "auth-extra-groups": group},
		},
		"with kubeadm": {
			args: []string{"--kubeadm", "--node=worker-1", "--ttl=90s", "--description=rack 7: \"left\"\nx"}, last: "is the token of node worker-1 for 1m30s, once the Secret has been created.\n",
			want: map[string]string{"description": "rack 7: \"left\"\nx", "expiration": "2026-03-01T12:01:30Z", "auth-extra-groups": group + ",system:bootstrappers:kubeadm:default-node-token"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, aside := printed(t, test.args...)
			var secret corev1.Secret
			if err := yaml.UnmarshalStrict([]byte(out), &secret); err != nil {
				t.Fatal(err)
			}
			id, text := secret.StringData["token-id"], secret.StringData["token-secret"]
			if !regexp.MustCompile(`^[a-z0-9]{6}$`).MatchString(id) || !regexp.MustCompile(`^[a-z0-9]{16}$`).MatchString(text) {
				t.Errorf("%q.%q", id, text)
			}
			test.want["token-id"], test.want["token-secret"] = id, text
			test.want["usage-bootstrap-authentication"], test.want["usage-bootstrap-signing"] = "true", "true"
			if diff := cmp.Diff(test.want, secret.StringData); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
			where := []string{secret.APIVersion, secret.Kind, secret.Namespace, secret.Name, string(secret.Type)}
			if diff := cmp.Diff([]string{"v1", "Secret", "kube-system", "bootstrap-token-" + id, "bootstrap.kubernetes.io/token"}, where); diff != "" {
				t.Errorf("object (-want +got):\n%s", diff)
			}
			if want := "# " + id + "." + text + " " + test.last; aside != want {
				t.Errorf("aside %q, want %q", aside, want)
			}
			if strings.Contains(out, id+"."+text) || strings.Contains(out, "creationTimestamp") {
				t.Errorf("printed:\n%s", out)
			}
		})
	}
}

func TestBootstrapTokenBindings(t *testing.T) {
	t.Parallel()
	const group = "system:bootstrappers:node:13029f9e83d15b3d437c2a7568fc1ca7990ecf3ff79bef6da08f13ff5ae12af8"
	out, _ := printed(t, "--node", "worker-1", "--rbac")
	documents := strings.Split(out, "---\n")
	if len(documents) != 3 {
		t.Fatalf("%d documents:\n%s", len(documents), out)
	}
	var got []string
	for _, document := range documents[1:] {
		var binding rbacv1.ClusterRoleBinding
		if err := yaml.UnmarshalStrict([]byte(document), &binding); err != nil {
			t.Fatal(err)
		}
		got = append(got, binding.Name, binding.RoleRef.Kind+" "+binding.RoleRef.Name)
		if diff := cmp.Diff([]rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: group}}, binding.Subjects); diff != "" {
			t.Errorf("subjects (-want +got):\n%s", diff)
		}
	}
	want := []string{
		group + ":join", "ClusterRole system:node-bootstrapper",
		group + ":approve", "ClusterRole system:certificates.k8s.io:certificatesigningrequests:nodeclient",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bindings (-want +got):\n%s", diff)
	}
}

// Every character of the alphabet occurs, and no token occurs twice.
func TestBootstrapTokensAreRandom(t *testing.T) {
	t.Parallel()
	seen, used := map[string]bool{}, map[rune]int{}
	for range 300 {
		_, aside := printed(t, "--node=a")
		token := strings.Fields(aside)[1]
		if seen[token] {
			t.Fatalf("%s twice", token)
		}
		seen[token] = true
		for _, char := range strings.Replace(token, ".", "", 1) {
			used[char]++
		}
	}
	for _, char := range "0123456789abcdefghijklmnopqrstuvwxyz" { // 183 are expected, with a deviation of 13
		if used[char] < 90 || used[char] > 280 {
			t.Errorf("%c is used %d times", char, used[char])
		}
	}
	if len(used) != 36 {
		t.Errorf("%d characters", len(used))
	}
}

func TestBootstrapTokenMistakes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"no node":        {want: []string{"--node is missing"}},
		"a user":         {args: []string{"--node=system:node:a"}, want: []string{`--node: "system:node:a" is not a valid node name`}},
		"in capitals":    {args: []string{"--node=Worker"}, want: []string{`--node: "Worker" is not a valid node name`}},
		"no time at all": {args: []string{"--node=a", "--ttl=0"}, want: []string{"--ttl: 0s is too short"}},
		"it has ended":   {args: []string{"--node=a", "--ttl=-1h"}, want: []string{"--ttl: -1h0m0s is too short"}},
		"all at once":    {args: []string{"--ttl=1ms", "x"}, want: []string{"--node is missing", "--ttl: 1ms is too short", `unexpected argument "x"`}},
		"unknown":        {args: []string{"--nodes=a"}, want: []string{"unknown flag: --nodes"}},
	} {
		var out, aside bytes.Buffer
		err := runBootstrapToken(&out, &aside, test.args...)
		if err == nil || out.Len() > 0 || aside.Len() > 0 {
			t.Errorf("%s: error %v, printed %q and %q", name, err, out.String(), aside.String())
			continue
		}
		for _, part := range test.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is not in %q", name, part, err)
			}
		}
	}
}

func TestBootstrapTokenHelp(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--help", "-h"} {
		out, aside := printed(t, flag)
		for _, part := range []string{"bootstrap-token --node NAME [flags]", "--node name", "--ttl time", "--kubeadm", "--rbac", "--description text"} {
			if !strings.Contains(out, part) {
				t.Errorf("%s: %q is not in:\n%s", flag, part, out)
			}
		}
		if aside != "" || strings.Contains(out, "token-secret") {
			t.Errorf("%s: %q, and\n%s", flag, aside, out)
		}
	}
}

// If the output cannot be written completely, the command returns an error.
func TestBootstrapTokenTellsWhatIsNotWritten(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	for _, failing := range []struct{ out, aside broken }{{out: broken{full}}, {aside: broken{full}}} {
		err := runBootstrapToken(failing.out, failing.aside, "--node=a")
		if !errors.Is(err, full) {
			t.Errorf("error %v", err)
		}
	}
}

// broken is a file whose writes fail with err. If err is nil, they succeed.
type broken struct{ err error }

func (b broken) Write(data []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	return len(data), nil
}
