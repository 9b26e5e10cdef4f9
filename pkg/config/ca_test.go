package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// TestValidateCA is about what is said of a CA beside where it is.
func TestValidateCA(t *testing.T) {
	t.Parallel()
	const (
		here    = "Forbidden: goes with the secret or the files that it is about: there are none here"
		created = "Forbidden: is for a CA that is made here: set createIfMissing"
		same    = "was named before with another chain, createIfMissing, keyAlgorithm or caDuration: say the same"
	)
	one := func(settings string) string {
		return "signing: {signers: [{name: example.com/a, usages: [server auth], " + settings + "}]}\n"
	}
	for name, test := range map[string]struct {
		body string
		args []string
		want []string // accepted when empty
	}{
		"made":                     {body: "signing: {secret: ns/ca, createIfMissing: true}\n"},
		"made, the Secret by flag": {body: "signing: {createIfMissing: true}\n", args: []string{"--signing-secret=ns/ca"}},
		"everything":               {body: "signing: {secret: ns/ca, createIfMissing: true, keyAlgorithm: ED25519, caDuration: 48h, chain: WithRoot}\n"},
		"for one signer":           {body: one("secret: ns/a, createIfMissing: true, keyAlgorithm: RSA4096, chain: None")},
		"chain of files":           {body: one("certFile: c, keyFile: k, chain: Intermediates")},
		"one CA named twice":       {body: "signing: {secret: ns/ca, chain: None, signers: [{name: example.com/a, usages: [server auth], secret: ns/ca, chain: None}]}\n"},

		"files are not made":    {body: one("certFile: c, keyFile: k, createIfMissing: true"), want: []string{"signing.signers[example.com/a].createIfMissing: Forbidden: only a Secret is created, files are not"}},
		"algorithm, not made":   {body: "signing: {secret: ns/ca, keyAlgorithm: RSA3072}\n", want: []string{"signing.keyAlgorithm: " + created}},
		"duration, not made":    {body: "signing: {secret: ns/ca, caDuration: 1h}\n", want: []string{"signing.caDuration: " + created}},
		"unknown algorithm":     {body: one("secret: ns/a, createIfMissing: true, keyAlgorithm: DSA"), want: []string{`signing.signers[example.com/a].keyAlgorithm: Unsupported value: "DSA": supported values: "ECDSAP256", "ECDSAP384", "RSA3072", "RSA4096", "ED25519"`}},
		"unknown chain":         {body: "signing: {secret: ns/ca, chain: none}\n", want: []string{`signing.chain: Unsupported value: "none": supported values: "Intermediates", "None", "WithRoot"`}},
		"too short":             {body: "signing: {secret: ns/ca, createIfMissing: true, caDuration: -1h}\n", want: []string{`signing.caDuration: Invalid value: "-1h0m0s": -1h0m0s` + tooShort}},
		"settings without a CA": {body: "signing: {chain: None, createIfMissing: true, signers: [{name: example.com/a, usages: [server auth], secret: ns/a}]}\n", want: []string{"signing.chain: " + here, "signing.createIfMissing: " + here}},
		"of the CA for all":     {body: "signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving, chain: None}]}\n", want: []string{"signing.signers[kubernetes.io/kubelet-serving].chain: " + here}},
		"one CA in two ways":    {body: "signing: {secret: ns/ca, signers: [{name: example.com/a, usages: [server auth], secret: ns/ca, chain: None}]}\n", want: []string{`signing.signers[example.com/a]: Invalid value: "Secret ns/ca": ` + same}},
		"a CA of two is made":   {body: "signing: {signers: [{name: example.com/a, usages: [any], secret: ns/a, createIfMissing: true}, {name: example.com/b, usages: [any], secret: ns/a}]}\n", want: []string{`signing.signers[example.com/b]: Invalid value: "Secret ns/a": ` + same}},
		"still the cluster's CA": {body: "signing: {secret: ns/ca, signers: [{name: example.com/a, usages: [client auth], secret: ns/ca, chain: None}]}\n", want: []string{
			`signing.signers[example.com/a].forbiddenSubjects: Required value: this signer permits client certificates and shares the CA of one of Kubernetes' signers, ` +
				"so whoever may approve for it can make any user: say which subjects it never issues, or give it a CA of its own",
			`signing.signers[example.com/a]: Invalid value: "Secret ns/ca": ` + same,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, problem := load(t, test.body, test.args...)
			if diff := cmp.Diff(strings.Join(test.want, "\n"), problem); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCAIsRead(t *testing.T) {
	t.Parallel()
	c, problem := load(t, "signing: {secret: ns/ca, createIfMissing: true, keyAlgorithm: ECDSAP384, caDuration: 48h, chain: None}\n")
	if problem != "" {
		t.Fatal(problem)
	}
	want := config.CA{Secret: "ns/ca", CreateIfMissing: true, KeyAlgorithm: "ECDSAP384", CADuration: metav1.Duration{Duration: 48 * time.Hour}, Chain: "None"}
	if c.Signing.CA != want {
		t.Errorf("read %+v, want %+v", c.Signing.CA, want)
	}
}
