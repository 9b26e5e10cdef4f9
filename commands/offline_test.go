package commands

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const configHead = "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"

type request = certificatesv1.CertificateSigningRequest

// document returns a request of node a in YAML, with a payload by the template if there is one. mods change it.
func document(t testing.TB, template *x509.CertificateRequest, mods ...func(*request)) string {
	t.Helper()
	obj := kit.NodeRequest(t, "a", func(obj *request) {
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		obj.ObjectMeta, obj.Spec.Username = metav1.ObjectMeta{Name: "r"}, "system:bootstrap:abcdef"
		if template != nil {
			obj.Spec.Request = kit.Payload(t, *template)
		}
	})
	for _, mod := range mods {
		mod(obj)
	}
	data, err := yaml.Marshal(obj)
	may(t, err)
	return string(data) + "---\n"
}

// serving returns a request for a serving certificate of node a.
func serving(t testing.TB) string {
	t.Helper()
	template := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)},
	}
	return document(t, template, func(obj *request) {
		obj.Spec.SignerName, obj.Spec.Username, obj.Spec.Groups = certificatesv1.KubeletServingSignerName, "system:node:a", []string{"system:nodes"}
		obj.Spec.Usages[1] = certificatesv1.UsageServerAuth
	})
}

// ruleRequest returns a request of ServiceAccount shop/web for a DNS name.
func ruleRequest(t testing.TB, object, signer, name string) string {
	t.Helper()
	return document(t, &x509.CertificateRequest{DNSNames: []string{name}}, func(obj *request) {
		obj.Name, obj.Spec.SignerName, obj.Spec.Usages[1] = object, signer, certificatesv1.UsageServerAuth
		obj.Spec.Username, obj.Spec.UID = "system:serviceaccount:shop:web", "1"
		obj.Spec.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:shop"}
	})
}

// The command judges by the rules of the approver and of the signer.
func TestExplainJudgesAFile(t *testing.T) {
	t.Parallel()
	const on = "approval: {kubeletServing: {enabled: true}, inventory: {sources: [{static: {rows: [{name: a, addresses: [10.0.0.1]}]}}, {node: {}}]}}\n"
	with := func(change func(*request)) string { return document(t, nil, change) }
	foreign := with(func(obj *request) { obj.Spec.SignerName = "example.com/a" })
	for name, test := range map[string]struct {
		config, request string
		want            []string
	}{
		"sound": {"", document(t, nil), []string{
			"r: approver: Approve, AutoApproved:", "if the requester has every permission", "r: signer, once it is approved: Sign, if the CA permits it",
		}},
		"no rule":    {"", foreign, []string{"approver: no rule of this configuration", "this signer is not configured"}},
		"serving":    {on, serving(t), []string{"only the manager knows what belongs to the node"}},
		"signer off": {"controllers: [approver]\n", document(t, nil), []string{"signer, once it is approved: it is switched off"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			configFile, file := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "request.yaml")
			put(t, configFile, []byte(configHead+test.config))
			put(t, file, []byte(test.request))
			var out bytes.Buffer
			may(t, Execute(t.Context(), []string{"explain", "--config", configFile, "-f", file}, &out))
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
	t.Parallel()
	one := document(t, nil)
	list := func(kind, version string, items ...string) string {
		text := "apiVersion: " + version + "\nkind: " + kind + "\nitems:\n"
		for _, item := range items {
			text += "- " + strings.ReplaceAll(strings.TrimSuffix(strings.TrimSpace(item), "\n---"), "\n", "\n  ") + "\n"
		}
		return text
	}
	const secret = "apiVersion: v1\nkind: Secret\n"
	for name, test := range map[string]struct {
		in      string
		read    int
		problem string
	}{
		"one":                {in: one, read: 1},
		"list":               {in: list("List", "v1", one, one, one), read: 3},
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

// TestRulesTest tries rules on requests in files, with tests that pass and tests that fail.
func TestRulesTest(t *testing.T) {
	t.Parallel()
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
		said := ""
		if err != nil {
			said = err.Error()
		}
		if said != test.want {
			t.Errorf("%s: error %q, want %q", name, said, test.want)
		}
		if diff := cmp.Diff(output, out.String()); diff != "" && !strings.Contains(test.want, "requires") && !strings.Contains(test.want, "bad configuration") {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// FuzzExplainFile reads anything as a file. Nothing may panic, or print text that can control a terminal.
func FuzzExplainFile(f *testing.F) {
	for _, text := range []string{document(f, nil), serving(f), "{}", "[]", "kind: List\nitems: [7, null, {}]", "---\n---", "a: &a [*a]", "{\"kind\":\"CertificateSigningRequestList\",\"items\":[{}]}"} {
		f.Add(text)
	}
	configFile := filepath.Join(f.TempDir(), "config.yaml")
	put(f, configFile, []byte(configHead))
	o, err := newOffline(configFile, clocktesting.NewFakePassiveClock(fixedNow))
	may(f, err)
	f.Fuzz(func(t *testing.T, text string) {
		var out bytes.Buffer
		objs, _ := readRequests("-f", strings.NewReader(text))
		may(t, o.explain(t.Context(), objs, &out))
		if at := strings.IndexFunc(out.String(), func(char rune) bool { return char != '\n' && (char < ' ' || char > '~') }); at >= 0 {
			t.Errorf("%q can fool a terminal", out.String()[at:at+1])
		}
	})
}
