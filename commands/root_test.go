package commands

import (
	"bytes"
	"context"
	"crypto/fips140"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

func TestEveryMistakeAtOnce(t *testing.T) {
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

// TestStopWaitsForTheLastWrite stops a manager during a write that takes almost as long as its timeout of 45 seconds, as does
// the read after it.
func TestStopWaitsForTheLastWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mgr, err := newManager(&rest.Config{}, &rest.Config{}, &config.Configuration{MetricsBindAddress: "0"}, controllers.Options{}, logr.Discard())
		kit.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := false
		kit.NoError(t, mgr.Add(manager.RunnableFunc(func(context.Context) error {
			stop()
			time.Sleep(2 * 45 * time.Second)
			done = true
			return nil
		})))
		if err := mgr.Start(ctx); err != nil || !done {
			t.Errorf("the writes have ended: %t, error %v", done, err)
		}
	})
}

func TestHelpListsEveryFlagAndCommand(t *testing.T) {
	var help, version bytes.Buffer
	kit.NoError(t, Execute(t.Context(), []string{"--help"}, &help))
	kit.NoError(t, Execute(t.Context(), []string{"--version"}, &version))
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
	for query, want := range map[string]time.Duration{
		"": time.Minute, "watch=false": time.Minute, "limit=500": time.Minute, "watch=true": time.Hour, "watch=true&allowWatchBookmarks=true": time.Hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, headers := range []bool{false, true} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost/api/v1/nodes?"+query, nil)
				kit.NoError(t, err)
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
	kit.NoError(t, err)
	server := &hanging{headers: true}
	response, err := newBounded(server).RoundTrip(request)
	kit.NoError(t, err)
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
	const group = "system:bootstrappers:node:13029f9e83d15b3d437c2a7568fc1ca7990ecf3ff79bef6da08f13ff5ae12af8"
	tokens := map[string]bool{}
	for _, test := range []struct{ args, expires, groups, ttl string }{
		{"--node worker-1", "2026-03-01T13:00:00Z", group, "1h0m0s"},
		{"--kubeadm --node=worker-1 --ttl=90s", "2026-03-01T12:01:30Z", group + ",system:bootstrappers:kubeadm:default-node-token", "1m30s"},
	} {
		var out, aside bytes.Buffer
		kit.NoError(t, runBootstrapToken(&out, &aside, strings.Fields(test.args)...))
		var secret corev1.Secret
		kit.NoError(t, yaml.UnmarshalStrict(out.Bytes(), &secret))
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

// TestBootstrapTokenReportsFailedWrites checks the error if the output cannot be written completely.
func TestBootstrapTokenReportsFailedWrites(t *testing.T) {
	full := errors.New("disk full")
	reader, file := io.Pipe()
	kit.NoError(t, reader.CloseWithError(full))
	for _, err := range []error{runBootstrapToken(file, io.Discard, "--node=a"), runBootstrapToken(io.Discard, file, "--node=a")} {
		if !errors.Is(err, full) {
			t.Errorf("error %v", err)
		}
	}
}

const configHead = "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"

type request = certificatesv1.CertificateSigningRequest

// document returns a request of node a in YAML, changed by mods.
func document(t testing.TB, mods ...func(*request)) string {
	t.Helper()
	obj := kit.NodeRequest(t, "a", func(obj *request) {
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		obj.ObjectMeta, obj.Spec.Username = metav1.ObjectMeta{Name: "r"}, "system:bootstrap:abcdef"
	})
	for _, mod := range mods {
		mod(obj)
	}
	data, err := yaml.Marshal(obj)
	kit.NoError(t, err)
	return string(data) + "---\n"
}

func serving(t testing.TB) string {
	t.Helper()
	return document(t, func(obj *request) {
		obj.Spec = kit.ServingRequest(t, "a", "10.0.0.1").Spec
		obj.Spec.Username, obj.Spec.Groups = "system:node:a", []string{"system:nodes"}
	})
}

func ruleRequest(t testing.TB, object, signer, name string) string {
	t.Helper()
	return document(t, func(obj *request) {
		obj.Name, obj.Spec.SignerName, obj.Spec.Usages[1] = object, signer, certificatesv1.UsageServerAuth
		obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{DNSNames: []string{name}})
		obj.Spec.Username, obj.Spec.UID = "system:serviceaccount:shop:web", "1"
		obj.Spec.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:shop"}
	})
}

// The command judges by the rules of the approver and of the signer.
func TestExplainJudgesAFile(t *testing.T) {
	const on = "approval: {kubeletServing: {enabled: true}, inventory: {sources: [{static: {rows: [{name: a, addresses: [10.0.0.1]}]}}, {node: {}}]}}\n"
	foreign := document(t, func(obj *request) { obj.Spec.SignerName = "example.com/a" })
	mldsa := func(signer string, usages ...certificatesv1.KeyUsage) string {
		return document(t, func(obj *request) {
			obj.Spec.SignerName, obj.Spec.Usages = signer, usages
			obj.Spec.Request = []byte(expect.File(t, "../pkg/csr/testdata/ML-DSA-87.pem"))
		})
	}
	says := func(parts ...string) []string { // with version v1.0.0 of the FIPS 140-3 module, ML-DSA keys are not permitted
		if fips140.Version() != "v1.0.0" {
			return parts
		}
		for i, part := range parts {
			who, _, _ := strings.Cut(part, ": ")
			parts[i] = who + ": " + map[bool]string{true: "Ignore", false: "Deny"}[strings.Contains(part, "RuleRefused")] + ", KeyNotPermitted: the public key can't be read"
		}
		return parts
	}
	const enciphers = "validating usages for ml-dsa key: usage key encipherment cannot be used with an ML-DSA signed certificate request"
	const onlySigner = "signing: {signers: [{name: example.com/a, secret: a/b, usages: [key encipherment, server auth]}]}\n"
	const rule = "approval: {rules: [{name: all, signerName: example.com/a, usages: [key encipherment, server auth], maxDuration: 9000h, " +
		"allow: [commonName, organizations], conditions: [{expression: 'true'}]}]}\n"
	for name, test := range map[string]struct {
		config, request string
		want            []string
	}{
		"ML-DSA": {"", mldsa("kubernetes.io/kube-apiserver-client-kubelet", "digital signature", "client auth"),
			says("approver: Approve, AutoApproved: ", "once it is approved: Sign, if the CA permits it")},
		"ML-DSA with key encipherment": {"", mldsa("kubernetes.io/kube-apiserver-client-kubelet", "digital signature", "key encipherment", "client auth"),
			says("approver: Deny, ShapeMismatch: the request for signer kubernetes.io/kube-apiserver-client-kubelet is not approved: "+enciphers+"; ",
				"once it is approved: Deny, SignerValidationFailure: "+enciphers)},
		"ML-DSA, a client": {"", mldsa("kubernetes.io/kube-apiserver-client", "client auth"),
			says("once it is approved: Deny, SignerValidationFailure: validating usages for ml-dsa key: usages must contain at least one of [")},
		"ML-DSA, a custom signer": {onlySigner + rule, mldsa("example.com/a", "key encipherment", "server auth"),
			says("approver: Wait, RuleRefused: the request for signer example.com/a is not approved: rule all: "+enciphers+`\nusages must contain`,
				"once it is approved: Deny, SignerValidationFailure: "+enciphers+`\nusages must contain`)},
		"sound": {"", document(t), []string{
			"r: approver: Approve, AutoApproved:", "if the requester has every permission", "r: signer, once it is approved: Sign, if the CA permits it",
		}},
		"no rule":    {"", foreign, []string{"approver: no rule of this configuration", "this signer is not configured"}},
		"serving":    {on, serving(t), []string{"only the manager knows what belongs to the node"}},
		"signer off": {"controllers: [approver]\n", document(t), []string{"signer, once it is approved: it is switched off"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			configFile, file := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "request.yaml")
			put(t, configFile, []byte(configHead+test.config))
			put(t, file, []byte(test.request))
			var out bytes.Buffer
			kit.NoError(t, Execute(t.Context(), []string{"explain", "--config", configFile, "-f", file}, &out))
			text := strings.Join(strings.Fields(out.String()), " ")
			for _, part := range test.want {
				if !strings.Contains(text, part) {
					t.Errorf("%q is not in:\n%s", part, out.String())
				}
			}
		})
	}
}

// TestExplainReadsFiles checks the number of requests that are read from a file, and that each mistake is reported.
func TestExplainReadsFiles(t *testing.T) {
	one := document(t)
	list := func(kind, version string, items ...string) string {
		text := "apiVersion: " + version + "\nkind: " + kind + "\nitems:\n"
		for _, item := range items {
			text += "- " + strings.ReplaceAll(strings.TrimSuffix(strings.TrimSpace(item), "\n---"), "\n", "\n  ") + "\n"
		}
		return text
	}
	inJSON := func(name string) string {
		return `{"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "` + name + `"}, "spec": {}}`
	}
	const secret = "apiVersion: v1\nkind: Secret\n"
	for name, test := range map[string]struct {
		in      string
		read    int
		problem string
	}{
		"one":                {in: one, read: 1},
		"list":               {in: list("List", "v1", one, one, one), read: 3},
		"JSON":               {in: `{"apiVersion": "v1", "kind": "List", "items": [` + inJSON("r") + "," + inJSON("\\u0000") + "]}", read: 2},
		"control characters": {in: inJSON("\x7f") + "\n" + inJSON("\u009b31m") + "\n" + inJSON("\\u001b\\n"), read: 3},
		"another kind":       {in: secret + "---\n" + one, read: 1, problem: "-f: document 1: want a CertificateSigningRequest of "},
		"an old version":     {in: strings.Replace(one, "k8s.io/v1\n", "k8s.io/v1beta1\n", 1), problem: "want a CertificateSigningRequest of certificates.k8s.io/v1"},
		"empty":              {in: "", problem: "-f: the file holds no CertificateSigningRequest"},
		"no YAML":            {in: "\tx: [", problem: "-f: document 1: "},
		"payload not base64": {in: strings.Replace(one, "request: ", "request: '*' #", 1), problem: "illegal base64"},
	} {
		objs, err := readRequests("-f", strings.NewReader(test.in))
		if len(objs) != test.read || (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s: %d read, error %v", name, len(objs), err)
		}
	}
}

const ruleConfiguration = configHead + `signing:
  signers: [{name: example.com/serving, secret: a/b, usages: [digital signature, server auth], duration: 1h}]
approval:
  rules:
  - {name: services, signerName: example.com/serving, preset: serviceNames}
  - name: own
    signerName: example.com/serving
    usages: [digital signature, server auth]
    maxDuration: 1h
    allow: [names]
    conditions: [{expression: "request.names == ['api.' + requester.serviceAccount.namespace + '.svc']", message: only api}]
`

func TestRulesTest(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		put(t, file, []byte(text))
		return file
	}
	requests := write("requests.yaml", ruleRequest(t, "good", "example.com/serving", "api.shop.svc")+
		ruleRequest(t, "half", "example.com/serving", "web.shop.svc")+ruleRequest(t, "other", "example.com/x", "a"))
	bad := write("bad.yaml", ruleRequest(t, "bad", "example.com/serving", "api.kitchen.svc"))
	const output = `good: rule services: accept
good: rule own: accept
half: rule services: accept
half: rule own: only api
other: no approval rule is for signer example.com/x
bad: rule services: DNS name "api.kitchen.svc" is not SERVICE.shop.svc or SERVICE.shop.svc.cluster.local: a ServiceAccount gets only names of Services in its own namespace
bad: rule own: only api
`
	for name, test := range map[string]struct {
		tests, want string
		args        []string
	}{
		"no tests":        {},
		"tests that pass": {tests: "  tests:\n  - {request: good, accepts: [own, services]}\n  - {request: half, accepts: [services]}\n  - {request: bad}\n"},
		"tests that fail": {tests: "  tests:\n  - {request: good, accepts: [own]}\n  - {request: bad, accepts: [own]}\n  - {request: none}\n",
			want: "test of request good: accepted by [\"own\" \"services\"], want [\"own\"]\ntest of request bad: accepted by [], want [\"own\"]\ntest of request none: accepted by [], want []"},
		"an unknown rule": {tests: "  tests: [{request: a, accepts: [b]}]\n", want: "bad configuration:\napproval.tests[0].accepts[0]: Invalid value: \"b\": is not one of approval.rules"},
		"no files":        {args: []string{"rules", "test"}, want: "requires at least 1 arg(s), only received 0"},
	} {
		file := write("config.yaml", ruleConfiguration+test.tests)
		args := test.args
		if args == nil {
			args = []string{"rules", "test", "--config", file, requests, bad}
		}
		var out bytes.Buffer
		err := Execute(t.Context(), args, &out)
		if said := strings.TrimPrefix(fmt.Sprint(err), "<nil>"); said != test.want {
			t.Errorf("%s: error %q, want %q", name, said, test.want)
		}
		if diff := cmp.Diff(output, out.String()); diff != "" && !strings.Contains(test.want, "requires") && !strings.Contains(test.want, "bad configuration") {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// FuzzExplainFile reads anything as a file. Nothing may panic, or print text that can control a terminal.
func FuzzExplainFile(f *testing.F) {
	for _, text := range []string{document(f), serving(f), "{}", "[]", "kind: List\nitems: [7, null, {}]", "---\n---", "a: &a [*a]", "{\"kind\":\"CertificateSigningRequestList\",\"items\":[{}]}"} {
		f.Add(text)
	}
	configFile := filepath.Join(f.TempDir(), "config.yaml")
	put(f, configFile, []byte(configHead))
	o, err := newOffline(configFile, clocktesting.NewFakePassiveClock(fixedNow))
	kit.NoError(f, err)
	f.Fuzz(func(t *testing.T, text string) {
		var out bytes.Buffer
		objs, _ := readRequests("-f", strings.NewReader(text))
		kit.NoError(t, o.explain(t.Context(), objs, &out))
		if at := strings.IndexFunc(out.String(), func(char rune) bool { return char != '\n' && (char < ' ' || char > '~') }); at >= 0 {
			t.Errorf("%q can fool a terminal", out.String()[at:at+1])
		}
	})
}
