package ca_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// valid returns a change that makes a certificate valid from and until so many days after now.
func valid(from, until float64) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.NotBefore = now.Add(time.Duration(from * float64(day)))
		c.NotAfter = now.Add(time.Duration(until * float64(day)))
	}
}

// TestEveryValidChainSigns checks CA files with several certificates of a name or of a key: expired, renewed, staged and
// cross-signed. Each is a file that some verifier accepts, or a fault of the operator for which requests wait.
func TestEveryValidChainSigns(t *testing.T) {
	oldRoot, newRoot := root("root", "P-256", valid(-400, -1)), root("root", "P-256", valid(-2, 800))
	fading, soon := root("root", "P-256", valid(-400, 20)), root("root", "P-256", valid(-400, 0.001))
	otherRoot := root("other root", "Ed25519", valid(-10, 500))
	crossExpired, cross := otherRoot.below("root", "P-256", valid(-10, -1)), otherRoot.below("root", "P-256", valid(-10, 50))
	staged := root("root", "P-256", valid(2, 900))
	pems := map[string][]byte{
		"old": oldRoot.pem, "new": newRoot.pem, "fading": fading.pem, "soon": soon.pem, "staged": staged.pem, "other": otherRoot.pem,
		"crossExpired": crossExpired.pem, "cross": cross.pem,
		"lower": newRoot.below("lower", "P-384", valid(-3, 700)).pem, "lowerStaged": newRoot.below("lower", "P-384", valid(3, 900)).pem,
		"namesake": root("root", "P-521", valid(-5, 5)).pem, "orphan": root("gone", "P-521").below("lower", "P-384", valid(-3, 600)).pem,
	}
	join := func(names string) (all []byte) {
		for _, name := range strings.Fields(names) {
			all = append(all, pems[name]...)
		}
		return all
	}
	for name, test := range map[string]struct {
		key, tls, anchors string
		after             float64 // the days after which a certificate of a year is issued
		want              string  // its end in days, and what follows it; or the error
	}{
		"an expired root and its renewal":        {"P-384", "lower old new", "", 0, "365 lower"},
		"the renewal first":                      {"P-384", "lower new old", "", 0, "365 lower"},
		"a root with 20 days left and a renewal": {"P-384", "lower fading new", "", 0, "365 lower"},
		"a root with 86 s left, after its end":   {"P-384", "lower soon new", "", 0.01, "365 lower"},
		"an expired cross-certificate":           {"P-256", "new crossExpired", "new", 0, "365 "},
		"below an expired cross-certificate":     {"P-384", "lower crossExpired other", "new", 0, "365 lower"},
		"self-signed, and cross-signed for ca.crt": {
			"P-256", "new cross", "other", 0, "50 root"},
		"self-signed, and cross-signed": {"P-256", "cross new other", "", 0, "365 "},
		"cross-signed only":             {"P-384", "lower cross", "", 0, "50 lower root"},
		"a staged renewal":              {"P-256", "new staged", "", 0, "365 "},
		"a staged renewal, later":       {"P-256", "fading staged", "", 21, "386 "},
		"a staged intermediate":         {"P-384", "lowerStaged new lower", "", 0, "365 lower"},
		"a staged root alone": {"P-256", "staged", "", 0,
			`the signing certificate "CN=root" is not valid before 2026-03-03T12:00:00Z`},
		"only an expired root": {"P-256", "old", "", 0, `the signing certificate has expired: "CN=root" expired at 2026-02-28T12:00:00Z`},
		"staged, and below a root that ends before": {"P-384", "lowerStaged", "fading crossExpired", 0,
			`the signing certificate "CN=lower" is not valid before 2026-03-04T12:00:00Z`},
		"never valid at the same time": {"P-384", "lowerStaged", "old", 0, `no chain leads from "CN=lower" to a certificate of ca.crt: ` +
			`x509: certificate has expired or is not yet valid: current time 2026-03-04T12:00:00Z is after 2026-02-28T12:00:00Z`},
		"an unrelated root beside an intermediate alone":  {"P-384", "orphan other", "", 0, "365 lower"},
		"another CA with the name of the issuer":          {"P-384", "lower namesake", "", 0, "365 lower"},
		"an issuer that is known, and one that is not":    {"P-384", "orphan lower new", "", 0, "365 lower"},
		"the known issuer has expired, the other has not": {"P-384", "orphan lower new", "", 750, `the signing certificate has expired`},
	} {
		loaded, err := ca.Load(join(test.tls), pkcs8(keys[test.key]()), map[bool][]byte{true: join(test.anchors)}[test.anchors != ""])
		var issued *ca.Issued
		at := now.Add(time.Duration(test.after * float64(day)))
		if err == nil {
			issued, err = loaded.Issue(profile(ca.ProfileConfig{}), request(), at)
		}
		if err != nil {
			if test.want == "the signing certificate has expired" { // at the end of any of them
				expect.Equal(t, name+": has expired", errors.Is(err, ca.ErrExpired), true)
				continue
			}
			expect.Error(t, name, err, test.want)
			continue
		}
		got := fmt.Sprintf("%.0f ", issued.NotAfter.Sub(now).Hours()/24)
		var chain []string
		for _, cert := range parse(t, issued.PEM)[1:] {
			chain = append(chain, cert.Subject.CommonName)
		}
		expect.Equal(t, name+": end and chain", got+strings.Join(chain, " "), test.want)
	}
}

// TestDamagedCertificatesAreRefused checks files of which pem.Decode skips a part, and certificates that only crypto/x509
// refuses. The former are bad as a whole. The latter are ignored, and reported as unread.
func TestDamagedCertificatesAreRefused(t *testing.T) {
	good, other := root("good", "P-256"), root("other", "P-384").pem
	lines := bytes.SplitAfter(other, []byte("\n"))
	damaged := bytes.Join(append(append(slices.Clone(lines[:3]), []byte("!"), lines[3]), lines[4:]...), nil)
	cut := bytes.Join(lines[:len(lines)-3], nil)
	der := parse(t, other)[0].Raw
	negative := block("CERTIFICATE", bytes.Replace(der, []byte{2, 1, 1}, []byte{2, 1, 0xff}, 1))
	twice := block("CERTIFICATE", bytes.Replace(der, []byte{0x55, 0x1d, 0x0f}, []byte{0x55, 0x1d, 0x13}, 1))
	ownNegative := block("CERTIFICATE", bytes.Replace(parse(t, good.pem)[0].Raw, []byte{2, 1, 1}, []byte{2, 1, 0xff}, 1))
	spaced := bytes.ReplaceAll(good.pem, []byte("\n"), []byte(" \n"))
	between := []byte("# by IPA\n[p11-kit-object-v1]\nclass: certificate\nlabel: \"CN%3Dca\"\ntrusted: true\n")
	const (
		ofOne = "1 of 1 PEM blocks of type CERTIFICATE are damaged: look for a changed line, a missing line break or a byte order mark"
		ofTwo = "1 of 2 PEM blocks of type CERTIFICATE are damaged: look for a changed line, a missing line break or a byte order mark"
		none  = "ca.crt: it holds no certificate: remove it, or correct its PEM"
	)
	for name, test := range map[string]struct {
		tls, anchors []byte
		want         string // an error, or "loaded", or "unread"
	}{
		"another root":                        {good.pem, other, `no chain leads from "CN=good" to a certificate of ca.crt: x509: certificate signed by unknown authority`},
		"another root behind a BOM":           {good.pem, append([]byte("\ufeff"), other...), "ca.crt: " + ofOne},
		"another root with a damaged line":    {good.pem, damaged, "ca.crt: " + ofOne},
		"a damaged root beside the right one": {good.pem, append(slices.Clone(damaged), good.pem...), "ca.crt: " + ofTwo},
		"a root without its end":              {good.pem, append(cut, good.pem...), "ca.crt: " + ofTwo},
		"no line break between two":           {append(bytes.TrimSpace(good.pem), other...), nil, "2 of 2"},
		"damaged in tls.crt":                  {append(slices.Clone(good.pem), damaged...), nil, ofTwo},
		"the last one without its end":        {append(slices.Clone(good.pem), bytes.Join(lines[:len(lines)-2], nil)...), nil, ofTwo},
		"spaces at the ends of lines":         {spaced, spaced, "loaded"},
		"attributes between certificates":     {slices.Concat(between, good.pem, between, other), nil, "loaded"},
		"truncated DER":                       {append(block("CERTIFICATE", der[:len(der)-9]), good.pem...), nil, "parse certificate 1: x509: malformed"},
		"an empty ca.crt":                     {good.pem, []byte{}, none},
		"a ca.crt without certificate":        {good.pem, []byte("# none\n"), none},
		"a ca.crt with a key":                 {good.pem, pkcs8(keys["leaf"]()), none},
		"a negative serial number":            {append(slices.Clone(negative), good.pem...), nil, "unread"},
		"a negative serial number in ca.crt":  {good.pem, append(slices.Clone(negative), good.pem...), "unread"},
		"an extension twice":                  {append(slices.Clone(twice), good.pem...), nil, "unread"},
		"OpenSSL's TRUSTED CERTIFICATE":       {append(block("TRUSTED CERTIFICATE", der), good.pem...), nil, "unread"},
		"only a negative serial number in ca.crt": {good.pem, negative,
			none + "\nparse certificate 1: x509: negative serial number"},
		"the signing certificate has it": {append(slices.Clone(ownNegative), other...), nil,
			"the private key does not match any of the 1 certificate(s)\nparse certificate 1: x509: negative serial number"},
	} {
		loaded, err := ca.Load(test.tls, pkcs8(good.key), test.anchors)
		got := fmt.Sprint(err)
		if err == nil {
			got = map[bool]string{true: "unread", false: "loaded"}[loaded.Unread()]
		}
		if !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	if _, err := ca.ParseCertificates(negative); err == nil {
		t.Error("ParseCertificates ignores a certificate")
	}
}

// TestConstraintsOfTheCA checks requests that the chain of the CA excludes: by its name constraints, for ever, and by its
// usages or its policies, until the operator replaces the CA.
func TestConstraintsOfTheCA(t *testing.T) {
	_, ten, _ := net.ParseCIDR("10.0.0.0/8")
	uri := must(url.Parse("spiffe://corp.example/a"))
	byNames := func(c *x509.Certificate) {
		c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{"corp.example"}, true
		c.ExcludedIPRanges, c.PermittedURIDomains, c.PermittedEmailAddresses = []*net.IPNet{ten}, []string{"corp.example"}, []string{"corp.example"}
	}
	usage := func(usages ...x509.ExtKeyUsage) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.ExtKeyUsage = usages }
	}
	top := root("root", "P-384")
	const server, client = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	policy := func(c *x509.Certificate) { // requires an explicit policy (RFC 5280 section 4.2.1.11), and leaves have none
		c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 36}, Critical: true, Value: []byte{0x30, 3, 0x80, 1, 0}}}
	}
	join := func(links ...*link) (all []byte) {
		for _, each := range links {
			all = append(all, each.pem...)
		}
		return all
	}
	noAddresses := func(c *x509.Certificate) { // of both CAs
		c.PermittedDNSDomains = []string{"example.net", "example.org"}
		c.ExcludedIPRanges = []*net.IPNet{{IP: net.IPv4zero.To4(), Mask: make(net.IPMask, 4)}, {IP: net.IPv6zero, Mask: make(net.IPMask, 16)}}
	}
	files := map[string][]byte{
		"no addresses":           join(root("root", "P-384", noAddresses).below("CA", "P-256", noAddresses), root("root", "P-384", noAddresses)),
		"constrained":            root("CA", "P-256", byNames).pem,
		"below it":               join(top.below("CA", "P-256"), root("root", "P-384", byNames)),
		"constrained and not":    join(root("CA", "P-256", byNames), root("CA", "P-256", valid(-1, 2))),
		"servers":                top.below("CA", "P-256", usage(server)).pem,
		"servers, root":          root("CA", "P-256", usage(server)).pem,
		"servers and any":        join(root("CA", "P-256", usage(server)), root("CA", "P-256", valid(-1, 2), usage(x509.ExtKeyUsageAny))),
		"constrained or servers": join(root("CA", "P-256", byNames), root("CA", "P-256", usage(server))),
		"policy":                 join(top.below("CA", "P-256", policy), top),
	}
	const unfit = "verifiers would refuse the certificate with the chain of \"CN=CA\": x509: "
	const excluded = "the name constraints of the CA exclude the request: "
	for _, test := range []struct {
		file string
		req  ca.Request
		want string
	}{
		{"constrained", ca.Request{DNSNames: []string{"w1.corp.example"}}, ""},
		{"constrained", ca.Request{}, ""},
		{"constrained", ca.Request{DNSNames: []string{"w1.other.example"}},
			excluded + `DNS name "w1.other.example" is not permitted by any constraint; "CN=CA" permits ["corp.example" "corp.example" "corp.example"]`},
		{"constrained", ca.Request{IPAddresses: []net.IP{net.IPv4(10, 1, 2, 3)}}, excluded + `IP address "10.1.2.3" is excluded by constraint "10.0.0.0/8"`},
		{"constrained", ca.Request{EmailAddresses: []string{"a@other.example"}}, excluded + `email address "a@other.example" is not permitted`},
		{"constrained", ca.Request{EmailAddresses: []string{"not an address"}}, excluded + `cannot parse rfc822Name "not an address"`},
		{"constrained", ca.Request{URIs: []*url.URL{must(url.Parse("spiffe://other/a"))}}, excluded + `URI "spiffe://other/a" is not permitted`},
		{"constrained", ca.Request{URIs: []*url.URL{uri}}, ""},
		{"no addresses", ca.Request{DNSNames: []string{"a.example.net"}}, ""},
		{"no addresses", ca.Request{DNSNames: []string{"a.example.net"}, IPAddresses: []net.IP{net.IPv4(192, 168, 22, 1)}},
			excluded + `IP address "192.168.22.1" is excluded by constraint "0.0.0.0/0"`},
		{"no addresses", ca.Request{IPAddresses: []net.IP{net.IPv6loopback}}, excluded + `IP address "::1" is excluded by constraint "::/0"`},
		{"below it", ca.Request{DNSNames: []string{"corp.example", strings.Repeat("a.", 120) + "example"}}, excluded},
		{"constrained and not", ca.Request{DNSNames: []string{"w1.other.example"}}, ""},
		{"servers", ca.Request{ExtKeyUsage: []x509.ExtKeyUsage{client}}, unfit + "certificate specifies an incompatible key usage"},
		{"servers", ca.Request{ExtKeyUsage: []x509.ExtKeyUsage{server, client}}, unfit + "certificate specifies an incompatible key usage"},
		{"servers", ca.Request{ExtKeyUsage: []x509.ExtKeyUsage{server}}, ""},
		{"servers", ca.Request{}, ""},
		{"servers, root", ca.Request{ExtKeyUsage: []x509.ExtKeyUsage{client}}, unfit + "certificate specifies an incompatible key usage"},
		{"servers and any", ca.Request{ExtKeyUsage: []x509.ExtKeyUsage{server, client}}, ""},
		{"constrained or servers", ca.Request{DNSNames: []string{"a.other"}, ExtKeyUsage: []x509.ExtKeyUsage{client}}, unfit},
		{"policy", ca.Request{}, "no chain leads from \"CN=CA\" to its root: x509: "},
	} {
		test.req.PublicKey = keys["leaf"]().Public()
		loaded, err := ca.Load(files[test.file], pkcs8(keys["P-256"]()), nil)
		if err == nil {
			_, err = loaded.Issue(profile(ca.ProfileConfig{Lifetime: day}), test.req, now)
		}
		violation := (*ca.Violation)(nil)
		name := fmt.Sprintf("%s: %q %v", test.file, test.req.DNSNames, test.req.ExtKeyUsage)
		switch got := fmt.Sprint(err); {
		case (err == nil) != (test.want == ""), err != nil && (!strings.HasPrefix(got, test.want) || len(got) > 1100):
			t.Errorf("%s: %s, want %s", name, got, test.want)
		case strings.HasPrefix(test.want, excluded) != (errors.As(err, &violation) && violation.Reason == "NameNotPermitted"):
			t.Errorf("%s: the error is of another kind: %v", name, err)
		}
	}
}

// TestVersion1Roots checks CAs of X.509 version 1, which have no extensions. Verifiers accept them as roots only.
func TestVersion1Roots(t *testing.T) {
	one := func(name, issuer, kind string) []byte { // kind is that of the issuer's key
		by := keys[kind]()
		var form struct {
			Raw asn1.RawContent
			TBS struct {
				Raw                                                     asn1.RawContent
				Version                                                 int `asn1:"optional,explicit,default:0,tag:0"`
				Serial, Algorithm, Issuer, Validity, Subject, PublicKey asn1.RawValue
				Extensions                                              asn1.RawValue `asn1:"optional,explicit,tag:3"`
			}
			Algorithm pkix.AlgorithmIdentifier
			Signature asn1.BitString
		}
		must(asn1.Unmarshal(parse(t, root(issuer, kind).below(name, "P-256").pem)[0].Raw, &form))
		tbs := form.TBS
		der := must(asn1.Marshal(struct{ Serial, Algorithm, Issuer, Validity, Subject, PublicKey asn1.RawValue }{
			tbs.Serial, tbs.Algorithm, tbs.Issuer, tbs.Validity, tbs.Subject, tbs.PublicKey}))
		digest := sha256.Sum256(der)
		signature := must(ecdsa.SignASN1(rand.Reader, by.(*ecdsa.PrivateKey), digest[:]))
		return block("CERTIFICATE", must(asn1.Marshal(struct {
			TBS       asn1.RawValue
			Algorithm pkix.AlgorithmIdentifier
			Signature asn1.BitString
		}{asn1.RawValue{FullBytes: der}, form.Algorithm, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}})))
	}
	key := keys["P-256"]()
	v1 := one("root", "root", "P-256")
	for name, test := range map[string]struct {
		tls, anchors []byte
		key          crypto.Signer
		err          string
	}{
		"signs":                       {v1, nil, key, ""},
		"is in ca.crt":                {v1, v1, key, ""},
		"is above":                    {append(root("root", "P-256").below("lower", "P-384").pem, v1...), nil, keys["P-384"](), ""},
		"is an intermediate":          {one("lower", "root", "leaf"), root("root", "leaf").pem, key, `no chain leads from "CN=lower" to a certificate of ca.crt: x509: `},
		"beside a renewal, version 3": {append(slices.Clone(v1), root("root", "P-256").pem...), nil, key, ""},
	} {
		loaded, err := ca.Load(test.tls, pkcs8(test.key), test.anchors)
		if err == nil {
			_, err = loaded.Issue(profile(ca.ProfileConfig{}), request(), now)
		}
		if fmt.Sprint(err) != test.err && (test.err == "" && err != nil || !strings.HasPrefix(fmt.Sprint(err), test.err)) {
			t.Errorf("%s: %v, want %s", name, err, test.err)
		}
	}
	_, err := must(ca.Load(v1, pkcs8(key), nil)).Renew(30*day, now) // it would be of version 3, and no CA
	expect.True(t, errors.Is(err, ca.ErrNoChain), "renewed: %v", err)
}

// forest is a random set of CAs, at most four of a name, and a request.
type forest struct {
	tls, anchors []*x509.Certificate // anchors are in ca.crt
	key          crypto.Signer
	req          ca.Request
}

func newForest(random *mathrand.Rand) forest {
	names, kinds := []string{"a", "b", "c"}, []string{"P-256", "third", "Ed25519"}
	pick := func(chance int) bool { return random.IntN(100) < chance }
	var made []*link
	var certs []*x509.Certificate
	count := map[string]int{}
	for range 3 + random.IntN(7) {
		i := random.IntN(len(names))
		name, kind := names[i], kinds[i]
		if pick(15) {
			kind = kinds[random.IntN(len(kinds))] // the same name with another key, or a key with two names
		}
		if count[name]++; count[name] > 4 {
			continue
		}
		change := func(c *x509.Certificate) {
			from, until := -random.IntN(5)-1, random.IntN(9)+1
			switch {
			case pick(15):
				until = -1 // expired
				from = -9
			case pick(15):
				from = 2 // staged
				until = 12
			}
			valid(float64(from), float64(until))(c)
			if pick(20) {
				c.MaxPathLen, c.MaxPathLenZero = random.IntN(2), true
			}
			if pick(15) {
				c.PermittedDNSDomains = []string{"corp.example"}
			}
			if pick(15) {
				c.ExtKeyUsage = [][]x509.ExtKeyUsage{{x509.ExtKeyUsageServerAuth}, {x509.ExtKeyUsageClientAuth}, {x509.ExtKeyUsageAny}}[random.IntN(3)]
			}
			if pick(4) {
				c.IsCA, c.MaxPathLen, c.MaxPathLenZero = false, 0, false
			}
		}
		var issuer *link
		if len(made) > 0 && pick(65) {
			issuer = made[random.IntN(len(made))]
		}
		made = append(made, issuer.below(name, kind, change))
		last := made[len(made)-1]
		cert := must(ca.ParseCertificates(last.pem))
		last.template.SubjectKeyId = cert[0].SubjectKeyId // for the authority key identifier of those below
		if pick(85) {                                     // else the certificate is missing
			certs = append(certs, cert...)
		}
	}
	f := forest{tls: certs, key: keys[kinds[random.IntN(len(kinds))]](), req: request()}
	random.Shuffle(len(certs), func(i, j int) { certs[i], certs[j] = certs[j], certs[i] })
	if some := random.IntN(len(certs) + 1); pick(50) && some > 0 {
		f.anchors = certs[:some]
		f.tls = certs[random.IntN(some):]
	}
	if pick(60) {
		f.req.DNSNames = []string{"w.corp.example"}
	}
	if pick(30) {
		f.req.DNSNames = append(f.req.DNSNames, "w.other.example")
	}
	f.req.ExtKeyUsage = [][]x509.ExtKeyUsage{nil, {x509.ExtKeyUsageServerAuth}, {x509.ExtKeyUsageClientAuth},
		{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}[random.IntN(4)]
	return f
}

// accepted returns the chains of f that crypto/x509 accepts for the request at now. It tries every sequence of
// certificates in which each is named as the issuer of the one before it. rooted are those that end in a self-signed
// certificate or in ca.crt.
func (f forest) accepted() (rooted, others [][]*x509.Certificate) {
	all := slices.Concat(f.tls, f.anchors)
	signedBy := func(cert, issuer *x509.Certificate) bool {
		return bytes.Equal(cert.RawIssuer, issuer.RawSubject) && issuer.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
	}
	var follow func(chain []*x509.Certificate)
	follow = func(chain []*x509.Certificate) {
		last := chain[len(chain)-1]
		own, isRoot := signedBy(last, last), slices.ContainsFunc(f.anchors, last.Equal)
		if len(f.anchors) == 0 {
			isRoot = own || !slices.ContainsFunc(all, func(issuer *x509.Certificate) bool { return !issuer.Equal(last) && signedBy(last, issuer) })
		}
		switch {
		case !isRoot || !f.accepts(chain):
		case own || len(f.anchors) > 0:
			rooted = append(rooted, chain)
		default:
			others = append(others, chain)
		}
		for _, issuer := range all {
			if len(chain) < 6 && bytes.Equal(last.RawIssuer, issuer.RawSubject) && !slices.ContainsFunc(chain, issuer.Equal) {
				follow(append(chain[:len(chain):len(chain)], issuer))
			}
		}
	}
	for _, cert := range all {
		if f.key.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(cert.PublicKey) {
			follow([]*x509.Certificate{cert})
		}
	}
	return rooted, others
}

func endOf(chain []*x509.Certificate) time.Time {
	return slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}

// accepts reports whether a leaf of the request, signed by the first certificate of chain, is valid with it at now.
func (f forest) accepts(chain []*x509.Certificate) bool {
	template := &x509.Certificate{SerialNumber: chain[0].SerialNumber, NotBefore: now.Add(-day), NotAfter: now.Add(day),
		DNSNames: f.req.DNSNames, ExtKeyUsage: f.req.ExtKeyUsage}
	leaf := must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, chain[0], f.req.PublicKey, f.key))))
	usages := f.req.ExtKeyUsage
	if len(usages) == 0 {
		usages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now}
	options.Roots.AddCert(chain[len(chain)-1])
	for _, cert := range chain[:len(chain)-1] {
		options.Intermediates.AddCert(cert)
	}
	return !slices.ContainsFunc(usages, func(usage x509.ExtKeyUsage) bool {
		options.KeyUsages = []x509.ExtKeyUsage{usage}
		_, err := leaf.Verify(options)
		return err != nil || !now.Before(endOf(chain))
	})
}

// TestRandomForests compares Load and Issue with an enumeration of all chains: exactly if crypto/x509 accepts one, a
// certificate is issued, and the chain that ends last is used. OpenSSL accepts each certificate with its chain.
func TestRandomForests(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := mathrand.New(mathrand.NewPCG(seed, 0))
	openssl, missing := exec.LookPath("openssl")
	if missing != nil && os.Getenv("CI") != "" {
		t.Fatal(missing)
	}
	outcomes := map[string]int{}
	for i := range 100 {
		f := newForest(random)
		pems := func(certs []*x509.Certificate) (all []byte) {
			for _, cert := range certs {
				all = append(all, block("CERTIFICATE", cert.Raw)...)
			}
			return all
		}
		loaded, err := ca.Load(pems(f.tls), pkcs8(f.key), pems(f.anchors))
		var issued *ca.Issued
		if err == nil {
			issued, err = loaded.Issue(profile(ca.ProfileConfig{Lifetime: 100 * day}), f.req, now)
		}
		rooted, others := f.accepted()
		if (err == nil) != (len(rooted)+len(others) > 0) {
			t.Fatalf("seed %d, forest %d: error %v, but crypto/x509 accepts %d chains\n%s", seed, i, err, len(rooted)+len(others),
				slices.Concat(pems(f.tls), []byte("ca.crt\n"), pems(f.anchors)))
		}
		if err != nil {
			outcomes["refused"]++
			continue
		}
		preferred := rooted
		if outcomes["issued"]++; len(rooted) == 0 {
			preferred = others
		}
		longest := slices.MaxFunc(preferred, func(a, b []*x509.Certificate) int { return endOf(a).Compare(endOf(b)) })
		if !issued.NotAfter.Equal(endOf(longest)) {
			t.Fatalf("seed %d, forest %d: valid until %s, want %s", seed, i, issued.NotAfter, endOf(longest))
		}
		if missing == nil && outcomes["issued"] <= 30 {
			verifyByOpenSSL(t, openssl, preferred, issued)
		}
	}
	if len(slices.Collect(maps.Keys(outcomes))) < 2 || min(outcomes["issued"], outcomes["refused"]) < 15 {
		t.Errorf("the forests are one-sided: %v", outcomes)
	}
}

// verifyByOpenSSL checks that OpenSSL accepts issued for each of its purposes if it trusts the root of its chain, which is
// one of chains.
func verifyByOpenSSL(t *testing.T, openssl string, chains [][]*x509.Certificate, issued *ca.Issued) {
	t.Helper()
	dir, certs := t.TempDir(), parse(t, issued.PEM)
	used := slices.IndexFunc(chains, func(chain []*x509.Certificate) bool { // a self-signed root does not follow the leaf
		extra := len(chain) - len(certs[1:])
		return extra >= 0 && extra <= 1 && slices.EqualFunc(chain[:len(certs)-1], certs[1:], (*x509.Certificate).Equal) &&
			certs[0].CheckSignatureFrom(chain[0]) == nil && endOf(chain).Equal(issued.NotAfter)
	})
	if used < 0 {
		t.Fatalf("no accepted chain is the one of the leaf: %s", issued.PEM)
	}
	chain := chains[used]
	if slices.ContainsFunc(certs[1:], func(cert *x509.Certificate) bool {
		return bytes.Equal(cert.RawSubject, cert.RawIssuer) && len(cert.AuthorityKeyId) == 0
	}) {
		return // crypto/x509 leaves out the key of an issuer of the same name, so OpenSSL takes the certificate for self-signed
	}
	files := map[string][]byte{"leaf": block("CERTIFICATE", certs[0].Raw), "root": block("CERTIFICATE", chain[len(chain)-1].Raw), "chain": issued.PEM}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// OpenSSL accepts the usage "any" of an issuer for no purpose.
	isAny := func(cert *x509.Certificate) bool { return slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny) }
	for _, usage := range certs[0].ExtKeyUsage {
		purpose := map[x509.ExtKeyUsage]string{x509.ExtKeyUsageServerAuth: "sslserver", x509.ExtKeyUsageClientAuth: "sslclient"}[usage]
		if slices.ContainsFunc(chain, isAny) {
			purpose = "any"
		}
		out, err := exec.Command(openssl, "verify", "-partial_chain", "-attime", fmt.Sprint(now.Unix()), "-purpose", purpose,
			"-CAfile", filepath.Join(dir, "root"), "-untrusted", filepath.Join(dir, "chain"), filepath.Join(dir, "leaf")).CombinedOutput()
		if err != nil {
			t.Errorf("openssl refuses what was issued: %s\n%s%s", out, files["root"], files["chain"])
		}
	}
}
