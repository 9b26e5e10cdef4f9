package commands

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ruleRequest returns the YAML of a request of ServiceAccount shop/web for a DNS name.
func ruleRequest(t *testing.T, object, signer, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{name}}, key)
	if err != nil {
		t.Fatal(err)
	}
	payload := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	return fmt.Sprintf(`apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: %s}
spec:
  signerName: %s
  usages: [digital signature, server auth]
  username: system:serviceaccount:shop:web
  uid: "1"
  groups: ["system:serviceaccounts", "system:serviceaccounts:shop"]
  request: %s
---
`, object, signer, payload)
}

const ruleConfiguration = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
signing:
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
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
			want: "test of request good: accepted by [\"services\" \"own\"], want [\"own\"]\ntest of request bad: accepted by [], want [\"own\"]\ntest of request none: accepted by [], want []"},
		"no rule tried":   {tests: "  tests: [{request: other}]\n", want: "test of request other: accepted by [], want []"},
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
