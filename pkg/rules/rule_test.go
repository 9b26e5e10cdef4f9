package rules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

func fmtUnix(at time.Time) string { return fmt.Sprint(at.Unix()) }

// serving is the rule of the reference, with these conditions.
func serving(conditions ...string) rules.Rule {
	rule := rules.Rule{
		Name: "service-serving", SignerName: "example.com/serving", Usages: []certificatesv1.KeyUsage{"digital signature", "key encipherment", "server auth"},
		MaxDuration: metav1.Duration{Duration: 168 * time.Hour}, Allow: []string{"names"},
	}
	for _, expression := range conditions {
		rule.Conditions = append(rule.Conditions, rules.Condition{Expression: expression})
	}
	return rule
}

const ownName = "request.names.all(n, n == 'api.' + requester.serviceAccount.namespace + '.svc')"

func smallestServing() *trial {
	r := account()
	names("api.shop.svc")(r)
	usages("server auth")(r)
	return r
}

func TestRule(t *testing.T) {
	t.Parallel()
	rule := serving(ownName)
	rule.Conditions[0].Message = "a ServiceAccount may ask only for the name api of its own namespace"
	const failed = "a ServiceAccount may ask only for the name api of its own namespace"
	judge(t, rule, smallestServing, map[string]row{
		"smallest":                     but(""),
		"all usages":                   but("", usages("digital signature, key encipherment, server auth")),
		"server on a trusted CA":       but("", trusted("API servers trust it")),
		"another namespace":            but(failed, names("api.kitchen.svc")),
		"a user":                       but(failed+" (the requester is not a ServiceAccount)", user("jane"), isNot("the requester is not a ServiceAccount")),
		"the account cannot be read":   but("error: down", unreadable),
		"no usage":                     but(`the request has none of the usages ["digital signature" "key encipherment" "server auth"]`, usages("")),
		"another usage":                but(`usage "client auth" is not one of ["digital signature" "key encipherment" "server auth"]`, usages("server auth, client auth")),
		"no extended usage, trusted":   but(`usages ["digital signature"] are valid for clients, but it is unknown`, usages("digital signature"), trusted("it is unknown")),
		"no extended usage, untrusted": but("", usages("digital signature")),
		"no names at all":              but("the request asks for no name, no address and no subject", names()),
		"common name":                  but("the rule does not allow commonName", common("api.shop.svc")),
		"organization":                 but("the rule does not allow organizations", orgs("a")),
		"address":                      but("the rule does not allow addresses", address),
		"email":                        but("the rule does not allow emails", email),
		"URI":                          but("the rule does not allow uris", uris("spiffe://a/b")),
		"other attribute":              but(unexpectedUnit, unit),
		"unknown attribute":            but(unexpectedAttribute, unknownAttribute),
		"extension":                    but(unexpectedExtension, extension),
		"wildcard":                     but(`DNS name "*.shop.svc" is a wildcard, which is not permitted`, names("*.shop.svc")),
		"upper case":                   but(`DNS name "API.shop.svc" has upper-case letters or a dot at the end`, names("API.shop.svc")),
		"an address as a name":         but(`DNS name "10.0.0.1" is an address`, names("10.0.0.1")),
		"half an address":              but(`DNS name "127.1" is an address`, names("127.1")),
		"a number as a name":           but(`DNS name "2130706433" is an address`, names("2130706433")),
		"a wildcard common name":       but(`the rule does not allow commonName`, common("*.svc")),
		"not a name":                   but(`DNS name "a b" is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -`, names("a b")),
		"a week":                       but("", lives(168*time.Hour)),
		"too long":                     but(tooLong, lives(168*time.Hour+time.Second)),
		"no duration":                  but(noDuration, lives(0)),
	})
	clients := rules.Rule{
		Name: "clients", SignerName: "example.com/clients", Usages: []certificatesv1.KeyUsage{"client auth", "any", "server auth"}, AllowWildcards: true,
		MaxDuration: metav1.Duration{Duration: time.Hour}, Allow: []string{"names", "addresses", "emails", "uris", "commonName", "organizations"},
		Conditions: []rules.Condition{{Expression: "true"}},
	}
	const forClients = " are valid for clients, but API servers trust it"
	judge(t, clients, smallestServing, map[string]row{
		"everything":         but("", usages("client auth, any"), names("*.a"), address, email, uris("a:b"), common("a"), orgs("b")),
		"a number in a name": but("", names("7.example.com", "1password.example.7up")),
		"an address alone":   but("", names(), address),
		"a subject alone":    but("", names(), common("a")),
		"client, trusted":    but(`usages ["client auth"]`+forClients, usages("client auth"), trusted("API servers trust it")),
		"any, trusted":       but(`usages ["server auth" "any"]`+forClients, usages("server auth, any"), trusted("API servers trust it")),
		"a star in between":  but(`DNS name "a.*.b" is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -`, names("a.*.b")),
	})
}

// TestConditions has the results of expressions. Only true accepts.
func TestConditions(t *testing.T) {
	t.Parallel()
	full := func() *trial {
		r := smallestServing()
		for _, change := range []change{address, email, uris("spiffe://example.org/a%20b"), common("cn"), orgs("o1", "o2"), extra("example.com/key", "x")} {
			change(r)
		}
		return r
	}
	for expression, want := range map[string]string{
		"request.commonName == 'cn' && request.organizations == ['o1', 'o2']":                           "",
		"request.names == ['api.shop.svc'] && request.addresses == ['10.0.0.1']":                        "",
		"request.emails == ['a@example.com'] && request.uris == ['spiffe://example.org/a%20b']":         "",
		"request.usages == ['server auth'] && request.duration == duration('1h')":                       "",
		"request.key.algorithm == 'ECDSA' && request.key.bits == 256":                                   "",
		"requester.username == 'system:serviceaccount:shop:web' && requester.uid == 'uid-1'":            "",
		"'system:serviceaccounts' in requester.groups && requester.extra['example.com/key'] == ['x']":   "",
		"requester.serviceAccount.namespace == 'shop' && requester.serviceAccount.name == 'web'":        "",
		"object.name == 'web-1' && object.labels.app == 'web' && size(object.annotations) == 0":         "",
		"object.created == timestamp('2026-03-01T12:00:00Z')":                                           "",
		"ip(request.addresses[0]).family() == 4 && cidr('10.0.0.0/8').containsIP(request.addresses[0])": "",
		"url(request.uris[0]).getHost() == 'example.org' && isIP('10.0.0.1') && isCIDR('10.0.0.0/8')":   "",
		"request.names[0].find('[a-z]+') == 'api' && request.names.isSorted()":                          "",
		"request.names[0].split('.').size() == 3 && request.names[0].upperAscii() == 'API.SHOP.SVC'":    "",
		"1/0 == 1 || true":                    "",
		"true || requester.extra['no'] == []": "",
		"false":                               "the condition false is not true",
		"1/0 == 1":                            "the condition 1/0 == 1 is not true (error: division by zero)",
		"1/0 == 1 || false":                   "the condition 1/0 == 1 || false is not true (error: division by zero)",
		"requester.extra['no'] == []":         "the condition requester.extra['no'] == [] is not true (error: no such key: no)",
		"object.labels.tier == 'a'":           "the condition object.labels.tier == 'a' is not true (error: no such key: tier)",
		"request.organizations[7] == 'a'":     "the condition request.organizations[7] == 'a' is not true (error: index out of bounds: 7)",
	} {
		rule := serving(expression)
		rule.Allow = []string{"names", "addresses", "emails", "uris", "commonName", "organizations"}
		judge(t, rule, full, map[string]row{expression: but(want)})
	}
	judge(t, serving("request.key.bits == 2048 && request.key.algorithm == 'RSA'"), smallestServing, map[string]row{"RSA": but("", keyed(rsaKey))})
	judge(t, serving("request.key.bits == 256 && request.key.algorithm == 'Ed25519'"), smallestServing, map[string]row{"Ed25519": but("", keyed(edKey))})
	judge(t, serving("has(requester.serviceAccount)"), smallestServing, map[string]row{
		"an account": but(""), "a user": but("the condition has(requester.serviceAccount) is not true", isNot("none")),
	})
}

// TestCostIsForTheWholeRequest checks that all rules share one budget.
func TestCostIsForTheWholeRequest(t *testing.T) {
	t.Parallel()
	many := func() *trial {
		r := smallestServing()
		all := make([]string, 900)
		for i := range all {
			all[i] = fmt.Sprintf("n%d.shop.svc", i)
		}
		names(all...)(r)
		return r
	}
	const costly = "request.names.all(n, request.names.exists(m, m == n))"
	compiler := must(rules.NewCompiler(csr.Limits{Names: 300, DERBytes: 4096}))
	compiled, mistakes := compiler.Compile(serving(costly), field.NewPath("rule"))
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	subject := many().subject(t)
	refusal, err := compiled.Judge(t.Context(), subject)
	if want := "the condition " + costly + " is not true (the conditions "; !strings.HasPrefix(refusal, want) || err != nil { // cost or take more
		t.Errorf("%q, %v, want %q", refusal, err, want)
	}
	cheap := compile(t, serving("true"))
	if refusal, _ := cheap.Judge(t.Context(), subject); !strings.HasPrefix(refusal, "the condition true is not true (the conditions ") {
		t.Errorf("after that, another rule says %q", refusal)
	}
	if refusal, _ := cheap.Judge(t.Context(), many().subject(t)); refusal != "" {
		t.Errorf("the next request: %q", refusal)
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	compiler := must(rules.NewCompiler(csr.DefaultLimits))
	preset := func(signer string, preset rules.Preset, change func(*rules.Rule)) rules.Rule {
		rule := rules.Rule{Name: "a", SignerName: signer, Preset: preset}
		if change != nil {
			change(&rule)
		}
		return rule
	}
	const client = "kubernetes.io/kube-apiserver-client"
	for name, test := range map[string]struct {
		rule rules.Rule
		want []string
	}{
		"complete":            {serving(ownName), nil},
		"does not parse":      {serving("request.names.all(n,\n  n == )"), []string{"line 2, column 8: Syntax error"}},
		"misses a field":      {serving("true", "request.nmes.size() > 0"), []string{"line 1, column 8: undefined field 'nmes'"}},
		"unknown variable":    {serving("reqest.names == []"), []string{"line 1, column 1: undeclared reference to 'reqest'"}},
		"wrong type":          {serving("request.commonName == 1"), []string{"line 1, column 20: found no matching overload for '_==_'"}},
		"not boolean":         {serving("request.names"), []string{"line 1, column 1: the expression is of type list(string), want bool"}},
		"not boolean but dyn": {serving("dyn(true)"), []string{"line 1, column 1: the expression is of type dyn, want bool"}},
		"no authorizer":       {serving("authorizer == null"), []string{"undeclared reference to 'authorizer'"}},
		"no clock":            {serving("now() > object.created"), []string{"undeclared reference to 'now'"}},
		"a bad pattern":       {serving("request.names.all(n, n.matches('('))"), []string{"line 1, column 32: invalid matches argument"}},
		"a large replacement": {serving("request.commonName.replace('a', request.commonName).size() > 0"), []string{"the estimated cost is"}},
		"costly": {serving("request.names.all(a, request.names.all(b, request.names.all(c, a == b || b == c)))"),
			[]string{"the estimated cost is"}},
		"a long message": {rules.Rule{Name: "a", SignerName: "a.b/c", Usages: []certificatesv1.KeyUsage{"server auth"}, MaxDuration: metav1.Duration{Duration: 1}, Allow: []string{"names"},
			Conditions: []rules.Condition{{Expression: "true", Message: strings.Repeat("x", 201)}}}, []string{"conditions[0].message: Too long"}},
		"empty": {rules.Rule{Name: "a", SignerName: "a.b/c"}, []string{"usages: Required", "maxDuration: Required", "allow: Required", "conditions: Required"}},
		"unknown values": {func() rules.Rule {
			rule := serving("true")
			rule.Name, rule.Usages, rule.Allow, rule.AllowWildcards = "A", []certificatesv1.KeyUsage{"x"}, []string{"name"}, true
			return rule
		}(), []string{"rule.name: Invalid", "usages: Invalid value: [\"x\"]: no such usage", "allow: Unsupported value: \"name\"", "allowWildcards: Forbidden"}},
		"a signer of Kubernetes": {func() rules.Rule {
			rule := serving("true")
			rule.SignerName = client
			return rule
		}(), []string{"signerName: Invalid value: \"" + client + "\": a signer of Kubernetes accepts only the preset ownIdentity"}},
		"serviceNames":                   {preset("a.b/c", rules.ServiceNames, nil), nil},
		"spiffe":                         {preset("a.b/c", rules.SPIFFE, func(r *rules.Rule) { r.TrustDomain = "a" }), nil},
		"ownIdentity":                    {preset(client, rules.OwnIdentity, func(r *rules.Rule) { r.ExpiryExtra = "a/b" }), nil},
		"no trust domain":                {preset("a.b/c", rules.SPIFFE, nil), []string{"trustDomain: Invalid"}},
		"a bad trust domain":             {preset("a.b/c", rules.SPIFFE, func(r *rules.Rule) { r.TrustDomain = "a/b" }), []string{"trustDomain: Invalid"}},
		"a bad cluster domain":           {preset("a.b/c", rules.ServiceNames, func(r *rules.Rule) { r.ClusterDomain = "a_b" }), []string{"clusterDomain: Invalid"}},
		"unknown preset":                 {preset("a.b/c", "x", nil), []string{"preset: Unsupported"}},
		"serviceNames for a kubelet":     {preset("kubernetes.io/kubelet-serving", rules.ServiceNames, nil), []string{"signerName: Invalid"}},
		"ownIdentity for another signer": {preset("a.b/c", rules.OwnIdentity, nil), []string{"signerName: Invalid"}},
		"ownIdentity for a kubelet":      {preset(client+"-kubelet", rules.OwnIdentity, nil), []string{"signerName: Invalid"}},
		"fixed fields": {preset("a.b/c", rules.ServiceNames, func(r *rules.Rule) {
			full := serving("true")
			full.Name, full.SignerName, full.Preset, full.AllowWildcards = "a", "a.b/c", rules.ServiceNames, true
			full.TrustDomain, full.ExpiryExtra = "a", "b"
			*r = full
		}), []string{"preset: Forbidden: fixes usages, maxDuration, allow, allowWildcards and conditions: remove these", "trustDomain: Forbidden", "expiryExtra: Forbidden"}},
	} {
		_, mistakes := compiler.Compile(test.rule, field.NewPath("rule"))
		if len(mistakes) != len(test.want) {
			t.Errorf("%s: %v, want %d mistakes", name, mistakes, len(test.want))
		}
		for _, want := range test.want {
			if !slices.ContainsFunc(mistakes, func(m *field.Error) bool { return strings.Contains(m.Error(), want) }) {
				t.Errorf("%s: %v, want %q", name, mistakes, want)
			}
		}
	}
}

// TestWhatARuleReads checks what a rule says of itself.
func TestWhatARuleReads(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string][2]bool{
		ownName: {false, true}, "requester.username == 'a'": {false, false}, "true": {true, false},
		"[requester].exists(r, r.serviceAccount.name == 'a')": {false, true}, "has(requester.serviceAccount)": {false, true},
	} {
		rule := serving(expression, "request.names.size() == 1")
		compiled := compile(t, rule)
		if got := [2]bool{len(compiled.Warnings) == 1, compiled.ReadsAccount}; got != want {
			t.Errorf("%s: warnings %q, reads the account %t", expression, compiled.Warnings, got[1])
		}
	}
	for preset, reads := range map[rules.Preset]bool{rules.ServiceNames: true, rules.SPIFFE: true, rules.OwnIdentity: false} {
		rule := rules.Rule{Name: "a", SignerName: "a.b/c", Preset: preset}
		if preset == rules.OwnIdentity {
			rule.SignerName = "kubernetes.io/kube-apiserver-client"
		}
		if preset == rules.SPIFFE {
			rule.TrustDomain = "a"
		}
		if compiled := compile(t, rule); compiled.ReadsAccount != reads || len(compiled.Warnings) > 0 {
			t.Errorf("%s: %+v", preset, compiled)
		}
	}
}
