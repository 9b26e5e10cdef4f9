package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestValidateWhatCustomSignersMayIssue checks the fields that bound what a custom signer issues beside its usages.
func TestValidateWhatCustomSignersMayIssue(t *testing.T) {
	t.Parallel()
	one := func(settings string) string {
		return "signing: {signers: [{name: example.com/a, secret: ns/a, " + settings + "}]}\n"
	}
	kubernetes := func(settings string) string {
		return "signing: {secret: ns/a, signers: [{name: kubernetes.io/kubelet-serving, " + settings + "}]}\n"
	}
	const rules = "Forbidden: Kubernetes' signers have rules of their own"
	for name, test := range map[string]struct {
		body string
		want []string // accepted when empty
	}{
		"names of every kind": {body: one(`usages: [server auth], allowedNames: [a.svc, "*.b.svc", 10.0.0.1, 10.9.0.0/16, "spiffe://a/*"]`)},
		"no extended usage":   {body: one(`usages: [digital signature], allowNoExtKeyUsage: true`)},
		"API servers":         {body: "signing: {secret: ns/a, apiServers: [10.0.0.1:6443, \"https://lb.test\"]}\n"},
		"a bad name": {body: one(`usages: [server auth], allowedNames: [a.svc, "*"]`), want: []string{
			`signing.signers[example.com/a].allowedNames[1]: Invalid value: "*": "*" is no allowed name: want a DNS name, *.suffix, an IP address, a CIDR, a URI or an e-mail address`}},
		"nothing that could be issued": {body: one(`usages: [digital signature, key encipherment]`), want: []string{
			`signing.signers[example.com/a].usages: Invalid value: "digital signature,key encipherment": none is an extended key usage, such as server auth, ` +
				"and without one a certificate is refused: add one, or set allowNoExtKeyUsage"}},
		"names for Kubernetes' signers": {body: kubernetes(`allowedNames: [a]`), want: []string{"signing.signers[kubernetes.io/kubelet-serving].allowedNames: " + rules}},
		"all usages for Kubernetes' signers": {body: kubernetes(`allowNoExtKeyUsage: true`), want: []string{
			"signing.signers[kubernetes.io/kubelet-serving].allowNoExtKeyUsage: " + rules}},
		"a bad API server": {body: "signing: {secret: ns/a, apiServers: [a]}\n", want: []string{
			`signing.apiServers: Invalid value: "a": "a" is neither host:port nor an https URL`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, problem := load(t, test.body)
			if diff := cmp.Diff(strings.Join(test.want, "\n"), problem); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}
