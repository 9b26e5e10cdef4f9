package rules_test

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
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

func smallestServing() *trial { return account(names("api.shop.svc"), usages("server auth")) }

func TestRule(t *testing.T) {
	rule := serving(ownName)
	rule.Conditions[0].Message = "a ServiceAccount may ask only for the name api of its own namespace"
	const failed = "a ServiceAccount may ask only for the name api of its own namespace"
	judge(t, rule, smallestServing, with(map[string]row{
		"smallest":                   but(""),
		"another namespace":          but(failed, names("api.kitchen.svc")),
		"a user":                     but(failed+" (the requester is not a ServiceAccount)", user("jane")),
		"the account cannot be read": but("error: down", unreadable),
		"another usage":              but(`usage "client auth" is not one of ["digital signature" "key encipherment" "server auth"]`, usages("server auth, client auth")),
		"trust unknown":              but(`usages ["digital signature"] are valid for clients, but it is unknown whether API servers trust the CA of the signer`, usages("digital signature"), trusted("")),
		"no extended usage, trusted": but(`usages ["digital signature"] are valid for clients, but it is unknown`, usages("digital signature"), trusted("it is unknown")),
		"no names at all":            but("the request asks for no name, no address and no subject", names()),
		"half an address":            but(`DNS name "127.1" is an address`, names("127.1")),
		"too long":                   but(tooLong, lives(168*time.Hour+time.Second)),
		"key encipherment, ML-DSA": but("validating usages for ml-dsa key: usage key encipherment cannot be used with an ML-DSA signed certificate request",
			usages("digital signature, key encipherment, server auth"), postQuantum),
		"server auth alone, ML-DSA": but("validating usages for ml-dsa key: usages must contain at least one of [cert sign content commitment crl sign "+
			"digital signature]", postQuantum),
		"no usage": but(`the request has none of the usages ["digital signature" "key encipherment" "server auth"]`, usages("")),
	}, "names"))
	clients := everything()
	clients.Usages = []certificatesv1.KeyUsage{"client auth", "any", "server auth"}
	const forClients = " are valid for clients, but API servers trust it"
	judge(t, clients, smallestServing, map[string]row{
		"everything":        but("", usages("client auth, any"), names("*.a"), address, email, uris("a:b"), common("a"), orgs("b")),
		"a subject alone":   but("", names(), common("a")),
		"client, trusted":   but(`usages ["client auth"]`+forClients, usages("client auth"), trusted("API servers trust it")),
		"any, trusted":      but(`usages ["server auth" "any"]`+forClients, usages("server auth, any"), trusted("API servers trust it")),
		"a star in between": but(`DNS name "a.*.b" is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -`, names("a.*.b")),
	})
}

// TestUnconfirmedAccount checks that a rule that reads the ServiceAccount accepts no request of a requester that has only the name
// of one, also if the condition asks with has. Other users have no ServiceAccount.
func TestUnconfirmedAccount(t *testing.T) {
	const inGroups, gone = "the requester has the name of a ServiceAccount, but is not in the group ", "ServiceAccount shop/web is deleted"
	const another = `ServiceAccount shop/web was deleted and created again: its UID is uid-2, and the requester's UID is "uid-1"`
	for _, expression := range []string{
		"!has(requester.serviceAccount) || request.names == ['api.' + requester.serviceAccount.namespace + '.svc']",
		"has(requester.serviceAccount) ? request.names == ['none'] : true",
		"[requester].all(r, !has(r.serviceAccount))",
	} {
		judge(t, serving(expression, "request.names.size() == 1"), smallestServing, map[string]row{
			"a user":                               but("", user("jane")),
			"a node":                               but("", user("system:node:a")),
			"deleted":                              but(gone, isNot(gone)),
			"created again":                        but(another, isNot(another)),
			"no UID":                               but("the requester has the name of a ServiceAccount, but no UID", noUID),
			"no groups":                            but(inGroups+"system:serviceaccounts", groups("system:authenticated")),
			"groups of another namespace":          but(inGroups+"system:serviceaccounts:shop", groups("system:serviceaccounts", "system:serviceaccounts:kitchen")),
			"half a name":                          but(notAccount, user("system:serviceaccount:shop")),
			"a name that no ServiceAccount has":    but(notAccount, user("system:serviceaccount:shop:web\n")),
			"it is unknown whether it was deleted": but("error: down", unreadable),
		})
	}
}

// everything returns a rule that accepts all values of all kinds.
func everything() rules.Rule {
	return rules.Rule{
		Name: "everything", SignerName: "example.com/serving", Usages: []certificatesv1.KeyUsage{"server auth"}, AllowWildcards: true,
		MaxDuration: metav1.Duration{Duration: time.Hour}, Allow: []string{"names", "addresses", "emails", "uris", "commonName", "organizations"},
		Conditions: []rules.Condition{{Expression: "true"}},
	}
}

// TestValues checks that no rule accepts a value that is not of its kind. Conditions need not know what else a program may read.
func TestValues(t *testing.T) {
	const unprintable, mailbox = " has characters that cannot be printed", " is not MAILBOX@DOMAIN, without quotes and with the domain in lower case"
	const host, segment = " has a user, or a host that is empty, a wildcard, or has upper-case letters or a dot at the end", " has a path with . or .., an empty segment, or an escaped slash"
	const spaces = " begins or ends with a space, or has two together"
	rows := map[string]row{}
	for value, want := range map[string]string{
		"a":                               "",
		"kubernetes.default.svc\x00.shop": `"kubernetes.default.svc\x00.shop"` + unprintable,
		"jane\nroot":                      `"jane\nroot"` + unprintable,
		" jane":                           `" jane"` + spaces,
		"jane ":                           `"jane "` + spaces,
		"jane  root":                      `"jane  root"` + spaces,
		"jane root":                       "",
		"jane\u202enimda":                 `"jane\u202enimda"` + unprintable,
		"jane\u200b":                      `"jane\u200b"` + unprintable,
		"jane\u3164":                      `"jane\u3164"` + unprintable,
		"jane\ufe0f":                      `"jane\ufe0f"` + unprintable,
		"jane\u034f":                      `"jane\u034f"` + unprintable,
		"repo:a/b:ref:refs/heads/main":    "", // as step-ca permits
		"J\u00f6rg \u0416":                "",
		strings.Repeat("x", 64):           "",
		strings.Repeat("x", 65):           `"` + strings.Repeat("x", 65) + `" is longer than 64 bytes (maxCommonName)`,
		strings.Repeat("\u0416", 33):      `"` + strings.Repeat(`\u0416`, 33) + `" is longer than 64 bytes (maxCommonName)`,
	} {
		if want != "" {
			want = "subject " + want
		}
		rows["common name "+value], rows["organization "+value] = but(want, common(value)), but(want, orgs("a", value))
	}
	for value, want := range map[string]string{
		"root+a.b@corp.com":                       "",
		"root@localhost":                          "",
		"root@victim.com\x00@corp.com":            mailbox,
		"root@victim.com,root@corp.com":           mailbox,
		"root\n@corp.com":                         mailbox,
		`"root@victim.com"@corp.com`:              mailbox,
		"root@victim.com@corp.com":                mailbox,
		"Root <root@corp.com>":                    mailbox,
		"root(victim.com)@corp.com":               mailbox,
		"root..a@corp.com":                        mailbox,
		".root@corp.com":                          mailbox,
		"@corp.com":                               mailbox,
		"corp.com":                                mailbox,
		"root@":                                   mailbox,
		"root@*.corp.com":                         mailbox,
		"root@CORP.com":                           mailbox,
		"root@corp.com.":                          mailbox,
		"root@[10.0.0.1]":                         mailbox,
		"root@10.0.0.1":                           mailbox,
		" root@corp.com":                          mailbox,
		strings.Repeat("x", 64) + "@corp.com":     "",
		strings.Repeat("x", 65) + "@corp.com":     mailbox,
		"root@" + strings.Repeat("a.", 127) + "a": mailbox,
	} {
		if want != "" {
			want = fmt.Sprintf("e-mail address %+q%s", csr.Shorten(value), want)
		}
		rows["e-mail "+value] = but(want, emails(value))
	}
	long := "spiffe://example.org/" + strings.Repeat("a", 2028)
	for value, want := range map[string]string{
		"spiffe://example.org/ns/shop/sa/web":                    "",
		"spiffe://example.org":                                   "",
		"https://token.example.com#repo:a/b:ref:refs/heads/main": "", // as step-ca permits
		"https://example.org:8443/a/?b=c%20d":                    "",
		"urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6":          "",
		long[:2048]: "",
		long:        " is longer than 2048 bytes",
		"spiffe://example.org/ns/shop/sa/web%00/../root":     unprintable,
		"spiffe://example.org/ns/shop/sa/web%0a":             unprintable,
		"spiffe://example.org/ns/shop/sa/%e2%80%ae":          unprintable,
		"spiffe://example.org/ns/shop/../kitchen/sa/web":     segment,
		"spiffe://example.org/ns/shop/%2e%2E/kitchen/sa/web": segment,
		"spiffe://example.org/ns/shop/.":                     segment,
		"spiffe://example.org/ns/shop/..;/kitchen":           segment,
		"spiffe://example.org/ns/shop/...":                   "",
		"spiffe://example.org/.well-known/..a":               "",
		"spiffe://example.org//ns/shop/sa/web":               segment,
		"spiffe://example.org/ns/a%2fsa%2Fb/sa/web":          segment,
		"spiffe://example.org/ns/a%5csa/web":                 segment,
		"https://example.org.:8443/a":                        host,
		"spiffe://example.org@victim.com/":                   host,
		"https://example.org:pw@victim.com/":                 host,
		"spiffe://EXAMPLE.org/a":                             host,
		"spiffe:a/../b":                                      segment,
		"urn:../x":                                           segment,
		"https:a@b.c/x":                                      host,
		"https:///x":                                         host,
		"https://*.corp.com/x":                               host,
		"mailto:x":                                           "",
		"ns/shop/sa/web":                                     " is not absolute",
		"//example.org/ns":                                   " is not absolute",
		"?a":                                                 " is not absolute",
	} {
		if want != "" {
			want = fmt.Sprintf("URI %+q%s", csr.Shorten(value), want)
		}
		rows["URI "+value] = but(want, uris(value))
	}
	for value, want := range map[string]string{
		"foo/bar.corp.example.com":       " is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -",
		"kubernetes.default.svc\x00.a":   " is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -",
		"xn--kubernetes-x8a.default.svc": "",
	} {
		if want != "" {
			want = fmt.Sprintf("DNS name %+q %s", value, strings.TrimSpace(want))
		}
		rows["DNS name "+value] = but(want, names(value))
	}
	judge(t, everything(), smallestServing, rows)
	longer := everything()
	longer.MaxCommonName = 65
	judge(t, longer, smallestServing, map[string]row{"a bound of the rule": but("", common(strings.Repeat("x", 65)))})
}

// TestUseBeforeConditions checks that a requester that may not use a rule causes no work by its conditions, and that a request that
// the fields refuse causes no question.
func TestUseBeforeConditions(t *testing.T) {
	for name, test := range map[string]struct {
		change change
		want   csr.Objection
		asked  int
	}{
		"may not use it": {func(*trial) {}, "the requester may not use it", 1},
		"a bad value":    {names("a\x00"), `DNS name "a\x00" is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -`, 0},
		"another usage":  {usages("client auth"), `usage "client auth" is not one of ["digital signature" "key encipherment" "server auth"]`, 0},
		"too long":       {lives(1000 * time.Hour), "the certificate would be valid for 1000h0m0s, longer than 168h0m0s: request less (spec.expirationSeconds)", 0},
	} {
		asked := 0
		subject := account(names("api.shop.svc"), usages("server auth"), test.change).subject()
		subject.MayUse = func(string) (bool, error) { asked++; return false, nil }
		subject.Gone = func() (csr.Objection, error) { return "read", nil }
		objection, err := compile(t, serving(ownName)).Judge(t.Context(), subject)
		expect.NoError(t, err)
		expect.Equal(t, name, objection, test.want)
		expect.Equal(t, name+": questions", asked, test.asked)
		expect.True(t, subject.State == nil, "%s: a condition was evaluated", name)
	}
}

func TestMistakes(t *testing.T) {
	changed := func(rule rules.Rule, change func(*rules.Rule)) rules.Rule {
		change(&rule)
		return rule
	}
	preset := func(signer string, preset rules.Preset) rules.Rule {
		return rules.Rule{Name: "a", SignerName: signer, Preset: preset}
	}
	const client = "kubernetes.io/kube-apiserver-client"
	for name, test := range map[string]struct {
		rule rules.Rule
		want []string
	}{
		"complete":            {serving(ownName), nil},
		"does not parse":      {serving("request.names.all(n,\n  n == )"), []string{"line 2, column 8: Syntax error"}},
		"wrong type":          {serving("request.commonName == 1"), []string{"line 1, column 20: found no matching overload for '_==_'"}},
		"not boolean":         {serving("request.names"), []string{"line 1, column 1: the expression is of type list(string), want bool"}},
		"not boolean but dyn": {serving("dyn(true)"), []string{"line 1, column 1: the expression is of type dyn, want bool"}},
		"no authorizer":       {serving("authorizer == null"), []string{"undeclared reference to 'authorizer'"}},
		"a bad pattern":       {serving("request.names.all(n, n.matches('('))"), []string{"line 1, column 32: invalid matches argument"}},
		"a large replacement": {serving("requester.username.replace('', requester.username).replace('', 'abcdefghi').size() > 0"), []string{"the estimated cost is"}},
		"costly": {serving("request.names.all(a, request.names.all(b, request.names.all(c, a == b || b == c)))"),
			[]string{"the estimated cost is"}},
		"a long message": {rules.Rule{Name: "a", SignerName: "a.b/c", Usages: []certificatesv1.KeyUsage{"server auth"}, MaxDuration: metav1.Duration{Duration: 1}, Allow: []string{"names"},
			Conditions: []rules.Condition{{Expression: "true", Message: strings.Repeat("x", 201)}}}, []string{"conditions[0].message: Too long"}},
		"empty": {rules.Rule{Name: "a", SignerName: "a.b/c"}, []string{"usages: Required", "maxDuration: Required", "allow: Required", "conditions: Required"}},
		"unknown values": {changed(serving("true"), func(r *rules.Rule) {
			r.Name, r.Usages, r.Allow, r.AllowWildcards = "A", []certificatesv1.KeyUsage{"x"}, []string{"name"}, true
		}), []string{"rule.name: Invalid", "usages: Invalid value: [\"x\"]: no such usage", "allow: Unsupported value: \"name\"", "allowWildcards: Forbidden"}},
		"a signer of Kubernetes": {changed(serving("true"), func(r *rules.Rule) { r.SignerName = client }),
			[]string{"signerName: Invalid value: \"" + client + "\": a signer of Kubernetes accepts only the preset ownIdentity"}},
		"no trust domain": {preset("a.b/c", rules.SPIFFE), []string{"trustDomain: Invalid"}},
		"a bad cluster domain": {changed(preset("a.b/c", rules.ServiceNames), func(r *rules.Rule) { r.ClusterDomain = "a_b" }),
			[]string{"clusterDomain: Invalid"}},
		"unknown preset":                 {preset("a.b/c", "x"), []string{"preset: Unsupported"}},
		"ownIdentity for another signer": {preset("a.b/c", rules.OwnIdentity), []string{"signerName: Invalid"}},
		"ownIdentity for a kubelet":      {preset(client+"-kubelet", rules.OwnIdentity), []string{"signerName: Invalid"}},
		"fixed fields": {changed(serving("true"), func(r *rules.Rule) {
			r.Name, r.SignerName, r.Preset, r.AllowWildcards = "a", "a.b/c", rules.ServiceNames, true
			r.TrustDomain, r.ExpiryExtra = "a", "b"
		}), []string{"preset: Forbidden: fixes usages, maxDuration, allow, allowWildcards and conditions: remove these", "trustDomain: Forbidden", "expiryExtra: Forbidden"}},
	} {
		_, mistakes := rules.Compile(test.rule, field.NewPath("rule"), must(cel.New(csr.DefaultLimits)))
		expect.Equal(t, fmt.Sprintf("%s: mistakes in %v", name, mistakes), len(mistakes), len(test.want))
		for _, want := range test.want {
			if !slices.ContainsFunc(mistakes, func(m *field.Error) bool { return strings.Contains(m.Error(), want) }) {
				t.Errorf("%s: %v, want %q", name, mistakes, want)
			}
		}
	}
}

// TestConditionsNeedACompiler has rules of a program without a language for conditions.
func TestConditionsNeedACompiler(t *testing.T) {
	preset := rules.Rule{Name: "a", SignerName: "example.com/serving", Preset: rules.ServiceNames}
	compiled, mistakes := rules.Compile(preset, field.NewPath("rule"), nil)
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	web := account(names("api.shop.svc"), usages("digital signature, server auth")).subject()
	if objection, err := compiled.Judge(t.Context(), web); objection != csr.NoObjection || err != nil {
		t.Errorf("a preset: %q, %v", objection, err)
	}
	compiled, mistakes = rules.Compile(serving("true"), field.NewPath("rule"), nil)
	expect.Equal(t, "mistakes", mistakes.ToAggregate().Error(), "rule.conditions: Forbidden: this program compiles no conditions: pass it those of "+
		"package github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel")
	objection, err := compiled.Judge(t.Context(), smallestServing().subject())
	if err != nil {
		t.Fatal(err)
	}
	expect.Equal(t, "a rule with that mistake", objection, "the conditions of the rule are not compiled")
}

// TestWhatARuleReads checks what a rule says of itself.
func TestWhatARuleReads(t *testing.T) {
	for expression, want := range map[string][2]bool{
		ownName: {false, true}, "requester.username == 'a'": {false, false}, "true": {true, false},
		"[requester].exists(r, r.serviceAccount.name == 'a')": {false, true}, "has(requester.serviceAccount)": {false, true},
	} {
		rule := serving(expression, "request.names.size() == 1")
		compiled := compile(t, rule)
		got := [2]bool{len(compiled.Warnings) == 1, compiled.ReadsAccount}
		expect.Equal(t, fmt.Sprintf("%s: warnings %q, and whether it reads the account", expression, compiled.Warnings), got, want)
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

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// trial is a request with the facts about it. A row of a table changes one thing of it.
type trial struct {
	content x509.CertificateRequest
	obj     certificatesv1.CertificateSigningRequest
	facts   rules.Subject
	public  crypto.PublicKey // in place of the key, unless it is nil
}

var ecdsaKey = sync.OnceValue(func() crypto.Signer { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })

// account is the requester of the trials, ServiceAccount web of namespace shop, with changes.
func account(changes ...change) *trial {
	lifetime := int32(3600)
	r := &trial{
		obj: certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "web-1", CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{"app": "web"}},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: "example.com/serving", ExpirationSeconds: &lifetime,
				Username: "system:serviceaccount:shop:web", UID: "uid-1",
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"},
			},
		},
		facts: rules.Subject{
			Lifetime: time.Hour,
			Trust:    rules.Trust{Untrusted: true},
			MayUse:   func(string) (bool, error) { return true, nil },
			Gone:     func() (csr.Objection, error) { return csr.NoObjection, nil },
			Now:      func() (time.Time, error) { return now, nil },
		},
	}
	for _, change := range changes {
		change(r)
	}
	return r
}

// change changes a trial.
type change func(*trial)

func names(all ...string) change { return func(r *trial) { r.content.DNSNames = all } }
func usages(list string) change {
	return func(r *trial) {
		r.obj.Spec.Usages = nil
		for usage := range strings.SplitSeq(list, ", ") {
			if usage != "" {
				r.obj.Spec.Usages = append(r.obj.Spec.Usages, certificatesv1.KeyUsage(usage))
			}
		}
	}
}
func common(name string) change       { return func(r *trial) { r.content.Subject.CommonName = name } }
func orgs(all ...string) change       { return func(r *trial) { r.content.Subject.Organization = all } }
func user(name string) change         { return func(r *trial) { r.obj.Spec.Username = name } }
func groups(all ...string) change     { return func(r *trial) { r.obj.Spec.Groups = all } }
func lives(time time.Duration) change { return func(r *trial) { r.facts.Lifetime = time } }
func trusted(why string) change       { return func(r *trial) { r.facts.Trust = rules.Trust{Why: why} } }
func made(at time.Time) change {
	return func(r *trial) { r.obj.CreationTimestamp = metav1.NewTime(at) }
}
func isNot(why string) change {
	return func(r *trial) { r.facts.Gone = func() (csr.Objection, error) { return csr.Objection(why), nil } }
}
func uris(all ...string) change {
	return func(r *trial) {
		r.content.URIs = nil
		for _, each := range all {
			r.content.URIs = append(r.content.URIs, must(url.Parse(each)))
		}
	}
}
func emails(all ...string) change { return func(r *trial) { r.content.EmailAddresses = all } }
func address(r *trial)            { r.content.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }
func email(r *trial)              { r.content.EmailAddresses = []string{"a@example.com"} }
func unit(r *trial)               { r.content.Subject.OrganizationalUnit = []string{"unit"} }
func postQuantum(r *trial)        { r.public = new(mldsa.PublicKey) }
func noUID(r *trial)              { r.obj.Spec.UID = "" }
func unreadable(r *trial) {
	r.facts.Gone = func() (csr.Objection, error) { return csr.NoObjection, errors.New("down") }
}
func unknownAttribute(r *trial) {
	r.content.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{1, 2, 3}, Value: "x"}}
}
func extension(r *trial) {
	r.content.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}
}
func extra(key string, values ...string) change {
	return func(r *trial) {
		if r.obj.Spec.Extra == nil {
			r.obj.Spec.Extra = map[string]certificatesv1.ExtraValue{}
		}
		r.obj.Spec.Extra[key] = values
	}
}

// subject returns the trial as rules judge it.
func (r *trial) subject() *rules.Subject {
	der := must(x509.CreateCertificateRequest(rand.Reader, &r.content, ecdsaKey()))
	r.obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	subject := r.facts
	subject.Request = must(csr.Parse(&r.obj))
	subject.SignerName = "example.com/serving"
	subject.Cert.PublicKey = cmp.Or(r.public, subject.Cert.PublicKey)
	return &subject
}

// compile returns the compiled rule.
func compile(t testing.TB, rule rules.Rule) *rules.Compiled {
	t.Helper()
	compiled, mistakes := rules.Compile(rule, field.NewPath("rule"), must(cel.New(csr.DefaultLimits)))
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	return compiled
}

// row is a trial that differs from the smallest accepted one in one thing. Empty want means that the rule accepts it.
type row struct {
	changes []change
	want    string
}

func but(want string, changes ...change) row { return row{changes, want} }

// judge compares what the rule says of each row.
func judge(t *testing.T, rule rules.Rule, smallest func() *trial, rows map[string]row) {
	t.Helper()
	compiled := compile(t, rule)
	for name, row := range rows {
		trial := smallest()
		for _, change := range row.changes {
			change(trial)
		}
		subject := trial.subject()
		subject.SignerName = rule.SignerName
		objection, err := compiled.Judge(t.Context(), subject)
		if err != nil {
			objection = csr.Objection("error: " + err.Error())
		}
		expect.Equal(t, name, objection, csr.Objection(row.want))
	}
}

const (
	unexpectedAttribute = `no rule permits ["subject attribute 1.2.3"]`
	unexpectedUnit      = `no rule permits ["OU=unit"]`
	unexpectedExtension = `no rule permits ["extension 2.5.29.19"]`
	notAccount          = "the requester is not a ServiceAccount"
	tooLong             = "the certificate would be valid for 168h0m1s, longer than 168h0m0s: request less (spec.expirationSeconds)"
	noDuration          = "the request has no duration (spec.expirationSeconds), and this manager does not sign it"
)

// ofAccounts returns rows, and rows about a requester that is not ServiceAccount web of namespace shop.
func ofAccounts(rows map[string]row) map[string]row {
	maps.Copy(rows, map[string]row{
		"a user":                             but(notAccount, user("web")),
		"a user with half a name":            but(notAccount, user("system:serviceaccount:shop")),
		"a name with more parts":             but(notAccount, user("system:serviceaccount:shop:web:x")),
		"a user who calls himself one":       but("the requester has the name of a ServiceAccount, but is not in the group system:serviceaccounts", groups("system:authenticated")),
		"groups of another namespace":        but("the requester has the name of a ServiceAccount, but is not in the group system:serviceaccounts:shop", groups("system:serviceaccounts", "system:serviceaccounts:kitchen")),
		"no UID, as of a client certificate": but("the requester has the name of a ServiceAccount, but no UID", noUID),
		"the account is deleted":             but("it is deleted", isNot("it is deleted")),
		"the account cannot be read":         but("error: down", unreadable),
	})
	return rows
}

// with returns rows, and a row for each kind of content that is not allowed.
func with(rows map[string]row, allowed ...string) map[string]row {
	for kind, ask := range map[string]change{
		"names": names("api.shop.svc"), "addresses": address, "emails": email, "uris": uris("spiffe://a/b"),
		"commonName": common("web"), "organizations": orgs("shop"),
	} {
		if !slices.Contains(allowed, kind) {
			rows[kind] = but("the rule does not allow "+kind, ask)
		}
	}
	rows["other attribute"], rows["unknown attribute"] = but(unexpectedUnit, unit), but(unexpectedAttribute, unknownAttribute)
	rows["extension"] = but(unexpectedExtension, extension)
	return rows
}

func TestServiceNames(t *testing.T) {
	smallest := func() *trial { return account(names("api.shop.svc"), usages("digital signature, server auth")) }
	const usual = `["digital signature" "key encipherment" "server auth"]`
	foreign := func(name string) string {
		return `DNS name "` + name + `" is not SERVICE.shop.svc or SERVICE.shop.svc.cluster.local: a ServiceAccount gets only names of Services in its own namespace`
	}
	judge(t, rules.Rule{Name: "a", SignerName: "example.com/serving", Preset: rules.ServiceNames}, smallest, with(ofAccounts(map[string]row{
		"smallest":                  but(""),
		"common name":               but("", common("api.shop.svc")),
		"CA that API servers trust": but("", trusted("API servers trust it")),
		"no names at all":           but("the request asks for no name, no address and no subject", names()),
		"a common name alone":       but("the request has no DNS name", names(), common("api.shop.svc")),
		"too many names":            but("the request has more than 20 DNS names", names(slices.Repeat([]string{"api.shop.svc"}, 21)...)),
		"another namespace":         but(foreign("api.kitchen.svc"), names("api.kitchen.svc")),
		"one more of another":       but(foreign("api.kitchen.svc"), names("api.shop.svc", "api.kitchen.svc")),
		"a short name":              but(foreign("api.shop"), names("api.shop")),
		"another domain":            but(foreign("api.shop.svc.example.com"), names("api.shop.svc.example.com")),
		"the domain twice":          but(foreign("api.shop.svc.cluster.local.cluster.local"), names("api.shop.svc.cluster.local.cluster.local")),
		"no Service":                but(foreign("shop.svc"), names("shop.svc")),
		"a Pod of a Service":        but(foreign("a.api.shop.svc"), names("a.api.shop.svc")),
		"the API server":            but(`DNS name "kubernetes.shop.svc" is a name of the API server`, names("kubernetes.shop.svc")),
		"a dot at the end":          but(`DNS name "api.shop.svc." has upper-case letters or a dot at the end`, names("api.shop.svc.")),
		"wildcard":                  but(`name "*.shop.svc" is a wildcard, which is not permitted`, names("*.shop.svc")),
		"an address as a name":      but(`DNS name "10.0.0.1" is an address`, names("10.0.0.1")),
		"another common name":       but(`common name "web" is not one of the DNS names`, common("web")),
		"client usage too":          but(`usage "client auth" is not one of `+usual, usages("digital signature, server auth, client auth")),
		"any usage":                 but(`usage "any" is not one of `+usual, usages("digital signature, server auth, any")),
		"no extended usage":         but(`usages ["digital signature"] are too few: a digital signature and a purpose are needed, of `+usual, usages("digital signature")),
		"too long":                  but(tooLong, lives(168*time.Hour+time.Second)),
		"no duration":               but(noDuration, lives(0)),
	}), "names", "commonName"))
	own := rules.Rule{Name: "a", SignerName: "example.com/serving", Preset: rules.ServiceNames, ClusterDomain: "lab.example"}
	judge(t, own, smallest, map[string]row{
		"its own domain":   but("", names("api.shop.svc.lab.example")),
		"the usual domain": but(`DNS name "api.shop.svc.cluster.local" is not SERVICE.shop.svc or SERVICE.shop.svc.lab.example: a ServiceAccount gets only names of Services in its own namespace`, names("api.shop.svc.cluster.local")),
	})
	subject := account(names("api.shop.svc", "b.shop.svc.lab.example", "api.shop.svc.lab.example"), usages("digital signature, server auth")).subject()
	if objection, err := compile(t, own).Judge(t.Context(), subject); objection != csr.NoObjection || err != nil ||
		fmt.Sprint(subject.Services) != "[shop/api shop/b]" {
		t.Errorf("%q, %v, Services %q", objection, err, subject.Services)
	}
	subject.SignerName = "example.com/other"
	objection, err := compile(t, own).Judge(t.Context(), subject)
	expect.Equal(t, "the objection to a request for another signer", objection, "the rule is for signer example.com/serving")
	if err != nil {
		t.Error(err)
	}
	subject.SignerName = "example.com/serving"
	if _, _ = compile(t, serving("true")).Judge(t.Context(), subject); len(subject.Services) > 0 {
		t.Errorf("Services %q for a rule without the preset", subject.Services)
	}
}

func TestSPIFFE(t *testing.T) {
	const id = "spiffe://example.org/ns/shop/sa/web"
	smallest := func() *trial { return account(uris(id), usages("digital signature, client auth")) }
	const usual = `["digital signature" "key encipherment" "client auth" "server auth"]`
	const other = "the only URI must be " + id
	judge(t, rules.Rule{Name: "a", SignerName: "example.com/spiffe", Preset: rules.SPIFFE, TrustDomain: "example.org"}, smallest, with(ofAccounts(map[string]row{
		"smallest":               but(""),
		"both usages":            but("", usages("digital signature, key encipherment, client auth, server auth")),
		"server on a trusted CA": but("", usages("digital signature, server auth"), trusted("API servers trust it")),
		"client on a trusted CA": but(`usages ["digital signature" "client auth"] are valid for clients, but API servers trust it`, trusted("API servers trust it")),
		"no URI":                 but("the request asks for no name, no address and no subject", uris()),
		"two URIs":               but(other, uris(id, id)),
		"another trust domain":   but(other, uris("spiffe://example.com/ns/shop/sa/web")),
		"another account":        but(other, uris("spiffe://example.org/ns/shop/sa/root")),
		"a query":                but(other, uris(id+"?")),
		"an escaped letter":      but(other, uris("spiffe://example.org/ns/shop/sa/%77eb")),
		"upper case":             but(`URI "spiffe://EXAMPLE.org/ns/shop/sa/web" has a user, or a host that is empty, a wildcard, or has upper-case letters or a dot at the end`, uris("spiffe://EXAMPLE.org/ns/shop/sa/web")),
		"no extended usage":      but(`usages ["digital signature"] are too few: a digital signature and a purpose are needed, of `+usual, usages("digital signature")),
		"too long":               but("the certificate would be valid for 24h0m1s, longer than 24h0m0s: request less (spec.expirationSeconds)", lives(24*time.Hour+time.Second)),
		"no duration":            but(noDuration, lives(0)),
	}), "uris"))
}

func TestOwnIdentity(t *testing.T) {
	const credential, end = "authentication.kubernetes.io/credential-id", "example.com/exp"
	smallest := func() *trial {
		return account(func(r *trial) { r.obj.Spec.SignerName = "kubernetes.io/kube-apiserver-client" }, user("jane"), common("jane"), isNot("none"),
			groups("developers", "system:authenticated"), usages("digital signature, client auth"), extra(credential, "JTI=4f1c"),
			trusted("API servers trust it"))
	}
	const usual = `["digital signature" "key encipherment" "client auth"]`
	const reserved = "no user name and no group may begin with system: or kubeadm:"
	const token = "the requester did not authenticate with a token that has an ID: a certificate cannot renew itself"
	rule := rules.Rule{Name: "a", SignerName: "kubernetes.io/kube-apiserver-client", Preset: rules.OwnIdentity}
	rows := map[string]row{
		"smallest":                   but(""),
		"a group":                    but("", orgs("developers")),
		"another user":               but(`common name "root" is not the requester's user name`, common("root")),
		"nobody":                     but("the request asks for no name, no address and no subject", common(""), user("")),
		"a foreign group":            but(`the requester is not in all of the groups ["admins" "developers"]`, orgs("developers", "admins")),
		"system:masters":             but(reserved, groups("system:masters"), orgs("system:masters")),
		"a group of kubeadm":         but(reserved, groups("kubeadm:cluster-admins"), orgs("kubeadm:cluster-admins")),
		"a user of Kubernetes":       but(reserved, user("system:serviceaccount:shop:web"), common("system:serviceaccount:shop:web")),
		"a user of kubeadm":          but(reserved, user("kubeadm:a"), common("kubeadm:a")),
		"a star in the user name":    but("", user("a*b"), common("a*b")),
		"a certificate":              but(token, extra(credential, "X509SHA256=00")),
		"impersonation":              but(token, extra(credential)),
		"two credentials":            but(token, extra(credential, "JTI=4f1c", "JTI=4f1c")),
		"an empty ID":                but(token, extra(credential, "JTI=")),
		"server usage":               but(`usage "server auth" is not one of `+usual, usages("digital signature, client auth, server auth")),
		"no client usage":            but(`usages ["digital signature"] are too few: a digital signature and a purpose are needed, of `+usual, usages("digital signature")),
		"too long":                   but("the certificate would be valid for 1h0m1s, longer than 1h0m0s: request less (spec.expirationSeconds)", lives(time.Hour+time.Second)),
		"no duration":                but(noDuration, lives(0)),
		"ten minutes old":            but("", made(now.Add(-10*time.Minute))),
		"older":                      but("the request is older than 10m0s: make a new one", made(now.Add(-601*time.Second))),
		"its credential ends sooner": but("", extra(end, "1")),
	}
	judge(t, rule, smallest, with(rows, "commonName", "organizations"))
	const outlives = `the certificate would outlive the credential of the requester, by "example.com/exp" of its extra: request less (spec.expirationSeconds)`
	until := func(at time.Time) change { return extra(end, fmtUnix(at)) }
	rule.ExpiryExtra = end
	judge(t, rule, smallest, map[string]row{
		"until the end":         but("", until(now.Add(time.Hour))),
		"in exponent notation":  but("", extra(end, "1.8e9")),
		"beyond the end":        but(outlives, until(now.Add(time.Hour-time.Second))),
		"no end":                but(outlives),
		"two ends":              but(outlives, extra(end, fmtUnix(now.Add(time.Hour)), fmtUnix(now.Add(time.Hour)))),
		"not a number":          but(outlives, extra(end, "tomorrow")),
		"never":                 but(outlives, extra(end, "+Inf")),
		"the time is not known": but("error: no time", until(now.Add(time.Hour)), func(r *trial) { r.facts.Now = func() (time.Time, error) { return time.Time{}, errors.New("no time") } }),
	})
}
