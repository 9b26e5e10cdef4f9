package ca_test

import (
	"crypto"
	"crypto/ecdh"
	"crypto/fips140"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestNewProfile checks the lifetimes. If 70 % of (lifetime + 5 min) is 5 min or less, a client renews at once. The limit is 15/7 min =
// 128.57 s.
func TestNewProfile(t *testing.T) {
	const limit = 5 * time.Minute * 3 / 7
	const tooShort = " is too short: certificates are backdated by 5m0s and clients renew after as little as 70% of the validity, " +
		"so a certificate of 2m9s or less is due for renewal as soon as it is issued"
	for name, test := range map[string]struct {
		lifetime, minimum, maximum time.Duration
		err                        string
	}{
		"empty":                          {0, 0, 0, ""},
		"the default equals the maximum": {time.Hour, 0, time.Hour, ""},
		"minimum over the maximum":       {time.Hour, 2 * time.Hour, 0, ""},
		"too short":                      {limit, 0, 0, limit.String() + tooShort},
		"negative":                       {-time.Hour, 0, 0, "-1h0m0s" + tooShort},
		"minimum too short":              {0, time.Minute, 0, "1m0s" + tooShort},
		"default over the maximum":       {2 * time.Hour, 0, time.Hour, "the default lifetime 2h0m0s exceeds the maximum lifetime 1h0m0s"},
	} {
		_, err := ca.NewProfile(ca.ProfileConfig{Lifetime: test.lifetime, MinLifetime: test.minimum, MaxLifetime: test.maximum})
		expect.Error(t, name, err, test.err)
	}
}

// TestSubjectPatterns checks which patterns are permitted in a profile.
func TestSubjectPatterns(t *testing.T) {
	for _, pattern := range []string{"O=system:masters", "CN=admin", "CN=system:*", "O=*", "CN=a=b"} {
		if _, err := ca.NewProfile(ca.ProfileConfig{ForbiddenSubjects: []string{pattern}}); err != nil {
			t.Error(err)
		}
	}
	for _, pattern := range []string{"", "O", "O=", "o=x", "OU=x", "=x", "CN=a*b", "CN=a**", "CN=*a"} {
		_, err := ca.NewProfile(ca.ProfileConfig{ForbiddenSubjects: []string{"CN=a", pattern}})
		expect.Error(t, pattern, err, `"`+pattern+`" is not a subject pattern: want O=value or CN=value, with at most one *, at the end`)
	}
}

// checked returns why config forbids a request, or "".
func checked(config ca.ProfileConfig, req ca.Request) string {
	if req.PublicKey == nil {
		req.PublicKey = keys["leaf"]().Public()
	}
	if violation := profile(config).Check(req); violation != nil {
		return violation.Reason + ": " + violation.Message
	}
	return ""
}

// TestProfileChecksKeys checks each kind of key.
func TestProfileChecksKeys(t *testing.T) {
	rsaOf := func(bits uint, exponent int) *rsa.PublicKey {
		return &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), int(bits-1), 1), E: exponent}
	}
	of := func(kind string) crypto.PublicKey { return keys[kind]().Public() }
	x25519 := must(ecdh.X25519().GenerateKey(rand.Reader)).PublicKey()
	const more = " is too weak: at least 2048 bits are needed"
	permitted := "use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, Ed25519, or ML-DSA-44, ML-DSA-65 or ML-DSA-87"
	if fips140.Version() == "v1.0.0" { // GOFIPS140
		permitted = "use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519"
	}
	for name, test := range map[string]struct {
		minimum int
		key     crypto.PublicKey
		weak    string // part of the message of KeyTooWeak
		never   string // part of the message of KeyNotPermitted
	}{
		"P-256":                       {0, of("P-256"), "", ""},
		"P-224":                       {0, of("P-224"), "", "ECDSA keys on the curve P-224"},
		"RSA of 2048 bits":            {0, of("RSA-2048"), "", ""},
		"RSA of 2047 bits":            {0, rsaOf(2047, 65537), "RSA key of 2047 bits" + more, ""},
		"RSA of 2048 bits, too short": {3072, of("RSA-2048"), "RSA key of 2048 bits is too weak: at least 3072 bits are needed", ""},
		"ML-DSA":                      {0, new(mldsa.PublicKey), "", ""},
		"X25519":                      {0, x25519, "", "public keys of type *ecdh.PublicKey"},
		"unknown to Go":               {0, struct{}{}, "", "public keys of type struct {}"},
		"RSA of 8193 bits":            {0, rsaOf(8193, 65537), "", "RSA keys of 8193 bits"},
		"RSA exponent of 1":           {0, rsaOf(2048, 1), "", "RSA keys with the public exponent 1"},
		"RSA exponent is even":        {0, rsaOf(2048, 65536), "", "RSA keys with the public exponent 65536"},
		"RSA exponent of 32 bits":     {0, rsaOf(2048, 1<<31+1), "", "RSA keys with the public exponent 2147483649"},
	} {
		want := ""
		switch {
		case test.weak != "":
			want = "KeyTooWeak: " + test.weak
		case test.never != "":
			want = "KeyNotPermitted: " + test.never + " are not permitted; " + permitted
		}
		expect.Equal(t, name, checked(ca.ProfileConfig{MinRSABits: test.minimum}, ca.Request{PublicKey: test.key}), want)
	}
}

// TestProfileChecksSubjects checks which subjects a pattern matches.
func TestProfileChecksSubjects(t *testing.T) {
	const masters = "O=system:masters"
	orgs := func(names ...string) pkix.Name { return pkix.Name{Organization: names} }
	common := func(name string) pkix.Name { return pkix.Name{CommonName: name} }
	for name, test := range map[string]struct {
		pattern string
		subject pkix.Name
		refused string // the subject in the message
	}{
		"only a prefix of it":      {masters, orgs("system:masters2", "system:master"), ""},
		"as common name":           {masters, common("system:masters"), ""},
		"the organization":         {masters, orgs("system:masters"), "O=system:masters"},
		"one of its organizations": {masters, orgs("x", "system:masters"), "O=x+O=system:masters"},
		"the common name":          {"CN=admin", common("admin"), "CN=admin"},
		"a prefix":                 {"CN=system:*", common("system:node:a"), "CN=system:node:a"},
		"not the prefix":           {"CN=system:*", common("system"), ""},
	} {
		want := ""
		if test.refused != "" {
			want = `SubjectNotPermitted: subject "` + test.refused + `" is not permitted: this signer never issues ` + test.pattern
		}
		expect.Equal(t, name, checked(ca.ProfileConfig{ForbiddenSubjects: []string{test.pattern}}, ca.Request{Subject: test.subject}), want)
	}
	both := ca.Request{Subject: pkix.Name{CommonName: "b", Organization: []string{"a"}}, DNSNames: []string{"*.a"}}
	config := ca.ProfileConfig{ForbiddenSubjects: []string{"O=a", "CN=b"}, ForbidWildcards: true}
	const first = "SubjectNotPermitted: subject \"CN=b,O=a\" is not permitted: this signer never issues O=a"
	expect.Equal(t, "the first of several", checked(config, both), first)
	both.PublicKey = keys["RSA-1024"]().Public()
	expect.Equal(t, "the key first", checked(config, both), "KeyTooWeak: RSA key of 1024 bits is too weak: at least 2048 bits are needed")
}

// TestProfileChecksNames checks the messages about DNS names. pkg/san tests the names.
func TestProfileChecksNames(t *testing.T) {
	for _, test := range []struct {
		noWildcards bool
		names       []string
		want        string
	}{
		{false, []string{"a", "*.a", "fd00::1"}, ""},
		{false, []string{"a", "b, DNS:\u202ec"},
			`DNS name "b, DNS:\u202ec" is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -`},
		{true, []string{"*.a"}, `DNS name "*.a" is a wildcard, which is not permitted`},
		{false, []string{strings.Repeat("a", 60_000)}, `DNS name "` + strings.Repeat("a", 253) + `..." is longer than 253 bytes`},
	} {
		got := strings.TrimPrefix(checked(ca.ProfileConfig{ForbidWildcards: test.noWildcards}, ca.Request{DNSNames: test.names}), "NameNotPermitted: ")
		expect.Equal(t, "names", got, test.want)
	}
}

// TestProfileKeepsItsOwnPatterns checks that a caller can't change the patterns of a profile.
func TestProfileKeepsItsOwnPatterns(t *testing.T) {
	patterns := []string{"CN=a"}
	checked := profile(ca.ProfileConfig{ForbiddenSubjects: patterns})
	patterns[0] = "CN=b"
	found := checked.Check(ca.Request{PublicKey: keys["leaf"]().Public(), Subject: pkix.Name{CommonName: "a"}})
	if found == nil {
		t.Error("permitted after a change of the caller's slice")
	}
}

// TestSubjectText checks that a text fits its room, and that "..." shows that more follows.
func TestSubjectText(t *testing.T) {
	everything := pkix.Name{
		Country: []string{"DE"}, Province: []string{"BE"}, Locality: []string{"Berlin"}, StreetAddress: []string{"Weg 1"}, PostalCode: []string{"1"},
		Organization: []string{"b, c", "a+\\", "#x", " y "}, OrganizationalUnit: []string{"u"}, CommonName: "Zo\u00eb \u202e", SerialNumber: "7",
	}
	for name, test := range map[string]struct {
		subject pkix.Name
		room    int
		want    string
	}{
		"empty":                     {pkix.Name{}, 100, ""},
		"names of the user first":   {everything, 1000, "CN=Zo\u00eb \u202e,O=b\\, c+O=a\\+\\\\+O=\\#x+O=\\ y\\ ,SERIALNUMBER=7,OU=u,POSTALCODE=1,STREET=Weg 1,L=Berlin,ST=BE,C=DE"},
		"a long serial number":      {pkix.Name{CommonName: "a", SerialNumber: strings.Repeat("x", 300)}, 30, "CN=a,SERIALNUMBER=xxxxxxxxx..."},
		"one byte too long":         {pkix.Name{CommonName: "abcdefg"}, 9, "CN=abc..."},
		"cut in a letter":           {pkix.Name{CommonName: "abc\u20ac\u20ac"}, 11, "CN=abc..."},
		"cut after the first value": {pkix.Name{CommonName: "abc", Organization: []string{"x"}}, 6, "CN=..."},
		"reads only what is needed": {pkix.Name{CommonName: strings.Repeat("x", 1<<20)}, 10, "CN=xxxx..."},
	} {
		got := ca.SubjectText(test.subject, test.room)
		if got != test.want || len(got) > test.room || !utf8.ValidString(got) {
			t.Errorf("%s: %q of %d bytes, want %q", name, got, len(got), test.want)
		}
	}
}

// TestSubjectTextIsLinear checks that the time is proportional to the size. pkix.Name.String takes minutes for this subject.
func TestSubjectTextIsLinear(t *testing.T) {
	name := pkix.Name{OrganizationalUnit: slices.Repeat([]string{"unit"}, 100_000)}
	began := time.Now()
	ca.SubjectText(name, 1<<20)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it takes %s", took)
	}
}

// TestAllowedNames checks which names of a request a list refuses.
func TestAllowedNames(t *testing.T) {
	names := must(ca.NewAllowedNames([]string{
		"hook.default.svc", "*.Lab.example.", "192.0.2.7", "10.9.0.0/16", "2001:db8::/64", "spiffe://lab/ns/*", "ops@lab.example",
	}))
	dns := func(names ...string) ca.Request { return ca.Request{DNSNames: names} }
	uri := func(text string) ca.Request { return ca.Request{URIs: []*url.URL{must(url.Parse(text))}} }
	ip := func(texts ...string) (req ca.Request) {
		for _, text := range texts {
			req.IPAddresses = append(req.IPAddresses, net.ParseIP(text))
		}
		return req
	}
	for name, test := range map[string]struct {
		req  ca.Request
		want string
	}{
		"a listed name":                      {dns("hook.default.svc"), ""},
		"in other case, with a dot":          {dns("HOOK.default.svc."), ""},
		"below a suffix":                     {dns("a.lab.example", "a.b.lab.example", "*.lab.example"), ""},
		"the suffix itself":                  {dns("lab.example"), "lab.example"},
		"another name with that end":         {dns("evillab.example"), "evillab.example"},
		"one of several":                     {dns("hook.default.svc", "kubernetes"), "kubernetes"},
		"listed addresses":                   {ip("192.0.2.7", "10.9.3.4", "2001:db8::5"), ""},
		"another address":                    {ip("10.9.3.4", "192.0.2.8"), "192.0.2.8"},
		"an address of wrong length":         {ca.Request{IPAddresses: []net.IP{{1, 2}}}, "?0102"},
		"an address as a DNS name":           {dns("10.9.0.1"), ""},
		"another address as a DNS name":      {dns("10.8.0.1"), "10.8.0.1"},
		"a zone in an address as a DNS name": {dns("2001:db8::1%eth0"), "2001:db8::1%eth0"},
		"another URI":                        {uri("spiffe://other/ns/a"), "spiffe://other/ns/a"},
		"e-mail addresses":                   {ca.Request{EmailAddresses: []string{"ops@lab.example", "me@lab.example"}}, "me@lab.example"},
		"a common name instead of a name":    {ca.Request{Subject: pkix.Name{CommonName: "kubernetes.default.svc"}}, "kubernetes.default.svc"},
		"a common name beside a name":        {ca.Request{Subject: pkix.Name{CommonName: "x"}, DNSNames: []string{"hook.default.svc"}}, ""},
	} {
		expect.Equal(t, name, names.Refused(test.req), test.want)
	}
	expect.Equal(t, "without a list", (ca.AllowedNames{}).Refused(dns("a")), "a")
}

// TestNewAllowedNames checks the entries of a list. A list with entries of any kind is not empty.
func TestNewAllowedNames(t *testing.T) {
	label := strings.Repeat("a", 63)
	longest := strings.Repeat(label+".", 3) + strings.Repeat("a", 61)
	for _, entries := range [][]string{{}, {"a", "10.0.0.1"}, {"10.0.0.1", "a@b"}, {"a", "a@b"}, {label}, {longest}} {
		if names, err := ca.NewAllowedNames(entries); err != nil || names.Empty() != (len(entries) == 0) {
			t.Errorf("%q: empty %t, error %v", entries, names.Empty(), err)
		}
	}
	for _, bad := range []string{
		"", "*", "a..b", "*.*.b", "a b", "10.0.0.0/33", "fe80::1%eth0", "http://*/a", "a*b", "::ffff:10.0.0.0/112", longest + "a",
	} {
		if _, err := ca.NewAllowedNames([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
