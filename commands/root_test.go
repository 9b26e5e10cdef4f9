package commands

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

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

func TestHelpListsEveryFlagAndCommand(t *testing.T) {
	t.Parallel()
	var help, version bytes.Buffer
	may(t, Execute(t.Context(), []string{"--help"}, &help))
	may(t, Execute(t.Context(), []string{"--version"}, &version))
	parts := []string{"bootstrap-token ", "completion ", "explain ", "rules ", "write-trust ", "--version"}
	config.NewFlags(config.Default()).VisitAll(func(flag *pflag.Flag) { parts = append(parts, "--"+flag.Name+" ") })
	for _, part := range parts {
		if !strings.Contains(help.String(), part) {
			t.Errorf("%q is not in:\n%s", part, help.String())
		}
	}
	if version.String() != "csr-controller-manager "+VersionOrBuild()+"\n" {
		t.Errorf("version %q", version.String())
	}
}

// TestCompletion checks that main prints a completion script unchanged, and that a script completes commands and flags.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"__completeNoDesc ex": "explain\n:4\n", "__completeNoDesc --node-b": "--node-block-list\n:4\n", "completion bash": "# bash completion",
		"completion zsh": "#compdef", "completion fish": "# fish", "completion powershell": "# powershell",
	} {
		var out bytes.Buffer
		err := Execute(t.Context(), strings.Fields(args), &out)
		script := strings.ReplaceAll(out.String(), "\u2026", "") // bash: in a long description, which main escapes
		if err != nil || !strings.HasPrefix(script, want) || script != ascii.Lines(script) {
			t.Errorf("%s: error %v, or the script is not ASCII: %.100s", args, err, script)
		}
	}
}

// hanging is an API server that never answers, or that sends the headers of its answer and then hangs.
type hanging struct {
	headers bool
	asked   context.Context
}

func (h *hanging) RoundTrip(request *http.Request) (*http.Response, error) {
	h.asked = request.Context()
	if h.headers {
		return &http.Response{Body: h}, nil
	}
	_, err := h.Read(nil)
	return nil, err
}

func (h *hanging) Read([]byte) (int, error) {
	<-h.asked.Done()
	return 0, h.asked.Err()
}

func (*hanging) Close() error { return nil }

// TestBounded checks when a call without a timeout of its own ends, and that it leaves no timer when its answer has been read. The
// test ends its watches after an hour.
func TestBounded(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]time.Duration{
		"": time.Minute, "watch=false": time.Minute, "limit=500": time.Minute, "watch=true": time.Hour, "watch=true&allowWatchBookmarks=true": time.Hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, headers := range []bool{false, true} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost/api/v1/nodes?"+query, nil)
				may(t, err)
				server, start := &hanging{headers: headers}, time.Now()
				response, err := newBounded(server).RoundTrip(request)
				if err == nil {
					_, err = io.ReadAll(response.Body)
					_ = response.Body.Close()
				}
				if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != want {
					t.Errorf("%q, headers %t: it ended after %s with %v, want %s", query, headers, took, err, want)
				}
				cancel()
			}
		})
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://localhost/version", nil)
	may(t, err)
	server := &hanging{headers: true}
	response, err := newBounded(server).RoundTrip(request)
	may(t, err)
	if during := server.asked.Err(); during != nil || response.Body.Close() != nil || !errors.Is(server.asked.Err(), context.Canceled) {
		t.Errorf("context %v, and %v after the answer", during, server.asked.Err())
	}
}

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
		"--node=system:node:a": `--node: "system:node:a" is not a valid node name`,
		"--node=a --ttl=0":     "--ttl: 0s is too short",
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
