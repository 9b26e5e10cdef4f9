package config_test

import (
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

func TestApprovalRuleMistakes(t *testing.T) {
	t.Parallel()
	of := func(approval string, want ...string) loaded {
		return loaded{body: secret + "approval: {" + approval + "}\n", want: want}
	}
	const full = "usages: [server auth], maxDuration: 1h, allow: [names]"
	check(t, map[string]loaded{
		"presets": of(`rules: [{name: a, signerName: example.com/a, preset: serviceNames, clusterDomain: lab},
    {name: b, signerName: example.com/a, preset: spiffe, trustDomain: a.b}, {name: c, signerName: kubernetes.io/kube-apiserver-client, preset: ownIdentity, expiryExtra: a/b}],
  tests: [{request: x, accepts: [a]}, {request: y}]`),
		"conditions": of("rules: [{name: a, signerName: example.com/a, " + full + ", allowWildcards: true, conditions: [{expression: 'true', message: m}]}]"),
		"every mistake": of("rules: [{name: a, signerName: a, "+full+", conditions: [{expression: 'request.nmes == []'}]}, {name: a, signerName: example.com/a, preset: x}], tests: [{accepts: [b]}]",
			`approval.rules[a].signerName: Invalid value: "a": want domain/name, such as example.com/client`,
			`approval.rules[a].conditions[0].expression: Invalid value: "request.nmes == []": line 1, column 8: undefined field 'nmes'`,
			`approval.rules[a]: Duplicate value: "a"`,
			`approval.rules[a].preset: Unsupported value: "x": supported values: "serviceNames", "spiffe", "ownIdentity"`,
			`approval.tests[0].request: Required value: name a request in the files of rules test`,
			`approval.tests[0].accepts[0]: Invalid value: "b": is not one of approval.rules`,
		),
		"a signer of kubelets": of("rules: [{name: a, signerName: kubernetes.io/kubelet-serving, preset: serviceNames}]",
			`approval.rules[a].signerName: Invalid value: "kubernetes.io/kubelet-serving": a signer of Kubernetes accepts only the preset ownIdentity`),
	})
}

// TestRulesThatIgnoreSomething checks the warnings about rules whose conditions never look at the requester, or at what is allowed.
func TestRulesThatIgnoreSomething(t *testing.T) {
	t.Parallel()
	const rule = "usages: [server auth], maxDuration: 1h, allow: [names], conditions: [{expression: "
	c, err := config.LoadFile(write(t, header+"approval: {rules: [{name: a, signerName: example.com/a, "+rule+"'request.names.size() == 1'}]}, {name: b, signerName: example.com/a, "+rule+
		"'requester.username == object.name'}]}, {name: c, signerName: example.com/a, preset: serviceNames}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if warnings := c.Warnings(false); len(warnings) != 2 || !strings.HasPrefix(warnings[0], "approval rule a never looks at the requester") ||
		warnings[1] != "approval rule b allows names, but no condition reads request.names: every value is accepted" {
		t.Errorf("warnings %q", warnings)
	}
}
