package cel_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// web returns a request of ServiceAccount web of namespace shop, with a value in each field, these DNS names and this key.
func web(key crypto.Signer, names ...string) *rules.Subject {
	der := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "cn", Organization: []string{"o1", "o2"}}, DNSNames: names,
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}, EmailAddresses: []string{"a@example.com"},
		URIs: []*url.URL{must(url.Parse("spiffe://example.org/a%20b"))},
	}, key))
	req := must(csr.Parse(&certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-1", CreationTimestamp: metav1.NewTime(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)), Labels: map[string]string{"app": "web"},
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: "example.com/serving", Usages: []certificatesv1.KeyUsage{"server auth"},
			Request:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			Username: "system:serviceaccount:shop:web", UID: "uid-1", Extra: map[string]certificatesv1.ExtraValue{"example.com/key": {"x"}},
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"},
		},
	}))
	return &rules.Subject{Request: req, Lifetime: time.Hour, Account: types.NamespacedName{Namespace: "shop", Name: "web"}}
}

// program returns the compiled expression.
func program(t *testing.T, limits csr.Limits, expression string) rules.Program {
	t.Helper()
	compiled, _, problems := must(cel.New(limits)).Compile(rules.Rule{MaxCommonName: 64}, rules.Condition{Expression: expression})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return compiled
}

// TestConditions has the results of expressions. Only true accepts.
func TestConditions(t *testing.T) {
	t.Parallel()
	p256 := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	for expression, want := range map[string]csr.Objection{
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
		"has(requester.serviceAccount)": "",
		"1/0 == 1 || true":              "",
		"false":                         "the condition false is not true",
		"1/0 == 1":                      "the condition 1/0 == 1 is not true (error: division by zero)",
		"requester.extra['no'] == []":   "the condition requester.extra['no'] == [] is not true (error: no such key: no)",
		"object.labels.tier == 'a'":     "the condition object.labels.tier == 'a' is not true (error: no such key: tier)",
	} {
		got := program(t, csr.DefaultLimits, expression).Check(t.Context(), web(p256, "api.shop.svc"))
		expect.Equal(t, expression, got, want)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	keys := map[string]crypto.Signer{"RSA 2048": must(rsa.GenerateKey(rand.Reader, 2048)), "Ed25519 256": must(ed, err)}
	for algorithm, parameters := range map[string]mldsa.Parameters{
		"ML-DSA-44 10496": mldsa.MLDSA44(), "ML-DSA-65 15616": mldsa.MLDSA65(), "ML-DSA-87 20736": mldsa.MLDSA87(),
	} {
		if fips140.Version() != "v1.0.0" { // that FIPS 140-3 module has no ML-DSA
			keys[algorithm] = must(mldsa.GenerateKey(parameters))
		}
	}
	for algorithm, key := range keys {
		got := program(t, csr.DefaultLimits, "request.key.algorithm + ' ' + string(request.key.bits) == '"+algorithm+"'").Check(t.Context(), web(key))
		expect.Equal(t, algorithm, got, csr.NoObjection)
	}
	user := web(p256)
	user.Account = types.NamespacedName{}
	for expression, want := range map[string]csr.Objection{
		"has(requester.serviceAccount)": "the condition has(requester.serviceAccount) is not true",
		"requester.serviceAccount.name == 'web'": "the condition requester.serviceAccount.name == 'web' is not true (the requester is not a " +
			"ServiceAccount)",
	} {
		expect.Equal(t, "a user: "+expression, program(t, csr.DefaultLimits, expression).Check(t.Context(), user), want)
	}
}

// TestCostIsForTheWholeRequest checks that all conditions about one request share one budget.
func TestCostIsForTheWholeRequest(t *testing.T) {
	t.Parallel()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	all := make([]string, 900)
	for i := range all {
		all[i] = fmt.Sprintf("n%d.shop.svc", i)
	}
	const expression = "request.names.all(n, request.names.exists(m, m == n))"
	costly, cheap := program(t, csr.Limits{Names: 300, DERBytes: 4096}, expression), program(t, csr.DefaultLimits, "true")
	many := web(key, all...)
	const want = "the condition " + expression + " is not true (the conditions " // cost or take more
	if objection := costly.Check(t.Context(), many); !strings.HasPrefix(string(objection), want) {
		t.Errorf("%q, want %q", objection, want)
	}
	if objection := cheap.Check(t.Context(), many); !strings.HasPrefix(string(objection), "the condition true is not true (the conditions ") {
		t.Errorf("after that, another condition says %q", objection)
	}
	part := web(key, all[:30]...) // whose judgement costs a part of the limit
	judged, objection := 0, csr.NoObjection
	for ; objection == csr.NoObjection && judged < 400; judged++ {
		objection = costly.Check(t.Context(), part)
	}
	if judged < 3 || judged == 400 {
		t.Errorf("refused after %d judgements: %q", judged, objection)
	}
	expect.Equal(t, "the next request", cheap.Check(t.Context(), web(key, all...)), csr.NoObjection)
}

// TestCompiles checks which expressions compile with the standard limits.
func TestCompiles(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]bool{
		"request.organizations.all(o, o in requester.groups)":                                                      true,
		"request.names.all(n, n.matches('^[a-z0-9-]+[.]shop[.]svc$'))":                                             true,
		"request.emails.all(e, e.matches('^[a-z.]+@corp[.]com$'))":                                                 true,
		"request.uris.all(u, u.matches('^spiffe://example[.]org/ns/[a-z0-9-]+/sa/[a-z0-9-]+$'))":                   true,
		"request.names.all(n, n.startsWith(requester.username))":                                                   true,
		"request.commonName == requester.username && requester.groups.exists(g, g.matches('^team-[a-z]+$'))":       true,
		"object.labels.all(k, object.labels[k].size() < 10)":                                                       true,
		"request.names.all(n, n in requester.groups)":                                                              false,
		"request.organizations.all(o, requester.groups.exists(g, g.matches('^' + o + '$')))":                       false,
		"request.names.all(a, request.names.exists(b, a == b))":                                                    false,
		"request.commonName.replace('', request.commonName).replace('', request.commonName).size() > 0":            true,
		"request.commonName.replace('', object.name).replace('', object.name).replace('', object.name).size() > 0": false,
	} {
		_, _, problems := must(cel.New(csr.DefaultLimits)).Compile(rules.Rule{MaxCommonName: 64}, rules.Condition{Expression: expression})
		expect.True(t, (len(problems) == 0) == want, "%s: %q", expression, problems)
	}
	wide := rules.Rule{MaxCommonName: 1 << 20}
	_, _, problems := must(cel.New(csr.DefaultLimits)).Compile(wide, rules.Condition{Expression: "request.commonName.matches('^[a-z]+[.]shop[.]svc$')"})
	expect.True(t, len(problems) == 0, "with a bound of 1 MiB: %q", problems)
}

// TestPatterns checks which patterns of matches are warned about.
func TestPatterns(t *testing.T) {
	t.Parallel()
	loose := func(pattern string) string {
		return "approval rule web has matches(" + pattern + "), which accepts each text with a match in it: write ^(?:PATTERN)$"
	}
	const computed = "approval rule web computes a pattern of matches: a dot in a value of the pattern matches every character; compare with =="
	for expression, want := range map[string]string{
		"request.commonName.matches('^[a-z]+$')":                                                    "",
		"request.commonName.matches('^(a|b)$') && request.commonName.matches(r'\\Aa\\z')":           "",
		"request.commonName.matches('(?i)^a$')":                                                     "",
		"request.commonName.find('a') == 'a'":                                                       "",
		"request.commonName == \"matches('a')\"":                                                    "",
		"request.commonName.matches('corp[.]com$')":                                                 loose(`"corp[.]com$"`),
		"matches(request.commonName, '^a')":                                                         loose(`"^a"`),
		"request.commonName.matches('^a|b$')":                                                       loose(`"^a|b$"`),
		"request.commonName.matches('(?m)^a$')":                                                     loose(`"(?m)^a$"`),
		"request.commonName.matches('')":                                                            loose(`""`),
		"request.names.all(n, n.matches('a') || n.matches('^b$'))":                                  loose(`"a"`),
		"request.names.all(n, n.matches('^' + requester.serviceAccount.name + '$'))":                computed,
		"request.names.all(n, requester.groups.exists(g, n == g) || n.matches(requester.username))": computed,
	} {
		_, warnings, problems := must(cel.New(csr.Limits{Names: 100, Entries: 100})).Compile(rules.Rule{Name: "web", MaxCommonName: 64},
			rules.Condition{Expression: expression})
		expect.Equal(t, fmt.Sprintf("%s: problems %q, warnings", expression, problems), strings.Join(warnings, "; "), want)
	}
}
