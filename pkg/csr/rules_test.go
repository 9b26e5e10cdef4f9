package csr_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// ask is a change of a parsed request.
type ask = func(*csr.Request)

func common(name string) ask { return func(req *csr.Request) { req.Cert.Subject.CommonName = name } }
func orgs(names ...string) ask {
	return func(req *csr.Request) { req.Cert.Subject.Organization = names }
}
func usages(usages ...usage) ask { return func(req *csr.Request) { req.Usages = usages } }
func dns(names ...string) ask    { return func(req *csr.Request) { req.Cert.DNSNames = names } }
func emails(req *csr.Request)    { req.Cert.EmailAddresses = []string{"a@example.com"} }
func addresses(req *csr.Request) { req.Cert.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }
func uris(req *csr.Request)      { req.Cert.URIs = []*url.URL{{Scheme: "urn", Opaque: "a"}} }

// broken is a rule of a shape: its error, and changes that break it.
type broken struct {
	want    string
	changes []ask
}

var (
	organization = broken{
		"subject organization is not system:nodes", []ask{orgs("system:masters"), orgs(), orgs("x", "system:nodes"), orgs("system:nodes", "x")},
	}
	nodeName     = broken{"subject common name does not begin with system:node:", []ask{common("system:nodes:a"), common(""), common("System:node:a")}}
	noDNS        = broken{"DNS subjectAltNames are not allowed", []ask{dns("a")}}
	noEmail      = broken{"Email subjectAltNames are not allowed", []ask{emails}}
	noIP         = broken{"IP subjectAltNames are not allowed", []ask{addresses}}
	noURI        = broken{"URI subjectAltNames are not allowed", []ask{uris}}
)

// TestShapes changes the smallest request that each shape accepts. Of two rules that are broken, the first one is named: the rules
// are in kube-controller-manager's order.
func TestShapes(t *testing.T) {
	t.Parallel()
	const signing, encipherment, client, server = "digital signature", "key encipherment", "client auth", "server auth"
	const invalid = "invalid usage for client certificate: "
	for name, test := range map[string]struct {
		shape    func(*csr.Request) error
		smallest []ask
		accepted []ask
		rules    []broken
	}{
		"kubelet client": {
			csr.KubeletClientShape, []ask{orgs("system:nodes"), common("system:node:a"), usages(signing, client)},
			[]ask{usages(client, encipherment, signing), common("system:node:")},
			[]broken{organization, noDNS, noEmail, noIP, noURI, nodeName, {
				"usages did not match [client auth digital signature key encipherment]",
				[]ask{usages(), usages(signing, encipherment), usages(encipherment, client), usages(signing, client, server), usages("signing", client)},
			}},
		},
		"kubelet serving": {
			csr.KubeletServingShape, []ask{orgs("system:nodes"), common("system:node:a"), usages(signing, server), dns("a")},
			[]ask{usages(server, signing, encipherment), common("system:node:"), addresses, func(req *csr.Request) { dns()(req); addresses(req) }},
			[]broken{organization, {"DNS or IP subjectAltName is required", []ask{dns()}}, noEmail, noURI, {
				"usages did not match [digital signature key encipherment server auth]",
				[]ask{usages(encipherment, server), usages(signing, encipherment), usages(signing, server, client)},
			}, nodeName},
		},
		"client": {
			csr.APIServerClientShape, []ask{usages(client)},
			[]ask{usages(signing, encipherment, client), orgs("system:masters"), dns("a"), emails, addresses, uris},
			[]broken{
				{"missing required usage for client certificate: client auth", []ask{usages(), usages(signing, encipherment)}},
				{invalid + "server auth", []ask{usages(client, server), usages(server, "any")}},
				{invalid + "signing", []ask{usages("signing", client)}},
			},
		},
	} {
		check := func(want string, changes ...ask) {
			t.Helper()
			req := &csr.Request{}
			for _, change := range slices.Concat(test.smallest, changes) {
				change(req)
			}
			if got := errorText(test.shape(req)); got != want {
				t.Errorf("%s: error %q, want %q", name, got, want)
			}
		}
		check("")
		for _, change := range test.accepted {
			check("", change)
		}
		for i, rule := range test.rules {
			for _, change := range rule.changes {
				check(rule.want, change)
			}
			for _, later := range test.rules[i+1:] {
				if name != "client" { // its rules are all about usages
					check(rule.want, rule.changes[0], later.changes[0])
				}
			}
		}
	}
}

// TestUsages checks the X.509 form of each usage. The usages are in the order of crypto/x509, and of the bits of RFC 5280
// section 4.2.1.3.
func TestUsages(t *testing.T) {
	t.Parallel()
	check := func(key x509.KeyUsage, ext []x509.ExtKeyUsage, unknown []usage, usages ...usage) {
		t.Helper()
		gotKey, gotExt, gotUnknown := csr.X509Usages(usages)
		if gotKey != key || !slices.Equal(gotExt, ext) || !slices.Equal(gotUnknown, unknown) {
			t.Errorf("%q: %b, %v and unknown %q, want %b, %v and unknown %q", usages, gotKey, gotExt, gotUnknown, key, ext, unknown)
		}
	}
	for bit, usage := range []usage{
		"digital signature", "content commitment", "key encipherment", "data encipherment", "key agreement",
		"cert sign", "crl sign", "encipher only", "decipher only",
	} {
		check(1<<bit, nil, nil, usage)
	}
	for value, usage := range []usage{
		"any", "server auth", "client auth", "code signing", "email protection", "ipsec end system", "ipsec tunnel", "ipsec user",
		"timestamping", "ocsp signing", "microsoft sgc", "netscape sgc",
	} {
		check(0, []x509.ExtKeyUsage{x509.ExtKeyUsage(value)}, nil, usage)
	}
	check(x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature, nil, nil, "cert sign", "signing", "signing")
	sorted := []x509.ExtKeyUsage{x509.ExtKeyUsageAny, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageEmailProtection}
	check(0, sorted, []usage{"Client Auth", ""}, "s/mime", "client auth", "Client Auth", "server auth", "s/mime", "", "any")
}

// TestIsNode checks the rule of the node authorizer: a user name with a node's name, and the group of nodes.
func TestIsNode(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]bool{"system:node:a": true, "system:node:": false, "system:nodea": false} {
		if got := (csr.Requester{Username: user, Groups: []string{"b", "system:nodes"}}).IsNode(); got != want {
			t.Errorf("%s: %t, want %t", user, got, want)
		}
	}
	if (csr.Requester{Username: "system:node:a", Groups: []string{"system:node"}}).IsNode() {
		t.Error("a node that is not in the group")
	}
}

// TestOtherSubject sets one attribute after another.
func TestOtherSubject(t *testing.T) {
	t.Parallel()
	value := []string{"x"}
	for want, subject := range map[string]pkix.Name{
		"": {CommonName: "a", Organization: value}, "C=x OU=x": {Country: value, OrganizationalUnit: value},
		"ST=x L=x": {Locality: value, Province: value}, "STREET=x POSTALCODE=x": {StreetAddress: value, PostalCode: value},
		"SERIALNUMBER=x": {SerialNumber: "x"},
	} {
		got := (&csr.Request{Cert: ca.Request{Subject: subject}}).OtherSubject()
		if strings.Join(got, " ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestShortenAll checks that a message holds at most eight texts of at most 256 bytes, and the number of the others.
func TestShortenAll(t *testing.T) {
	t.Parallel()
	all := slices.Repeat([]string{"text"}, 11)
	for count, more := range map[int][]string{0: nil, 8: nil, 9: {"and 1 more"}, 11: {"and 3 more"}} {
		if got, want := csr.ShortenAll(all[:count]), slices.Concat(all[:min(count, 8)], more); !slices.Equal(got, want) {
			t.Errorf("%d texts: %q, want %q", count, got, want)
		}
	}
	if got := csr.ShortenAll([]string{strings.Repeat("a", 257)}); len(got) != 1 || len(got[0]) > 256 || !strings.HasSuffix(got[0], "...") {
		t.Errorf("a text of 257 bytes is shortened to %q", got)
	}
}

// TestTokenGroup checks that the group holds the whole hash of the node's name, and that a bootstrap token may have it
// (k8s.io/cluster-bootstrap, BootstrapGroupPattern).
func TestTokenGroup(t *testing.T) {
	t.Parallel()
	const hash = "13029f9e83d15b3d437c2a7568fc1ca7990ecf3ff79bef6da08f13ff5ae12af8" // printf '%s' worker-1 | sha256sum
	permitted := regexp.MustCompile(`\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z`)
	if got := csr.TokenGroup("worker-1"); got != "system:bootstrappers:node:"+hash || !permitted.MatchString(got) {
		t.Errorf("group %s", got)
	}
}

// TestCertificates checks which credential IDs stand for a certificate.
func TestCertificates(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("0a", 32), strings.Repeat("f9", 32)
	const prefix, key = "X509SHA256=", "authentication.kubernetes.io/credential-id"
	for id, want := range map[string][]string{
		prefix + a: {a}, prefix + strings.ToUpper(a): {a}, a: nil, "x509sha256=" + a: nil, "JTI=" + a: nil, prefix: nil, prefix + a + " ": nil,
		prefix + a[2:]: nil, prefix + a + "00": nil, prefix + strings.Repeat("0g", 32): nil, prefix + a + "," + b: nil,
	} {
		if got := (csr.Requester{Extra: map[string]certificatesv1.ExtraValue{key: {id}}}).Certificates(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	several := csr.Requester{Extra: map[string]certificatesv1.ExtraValue{key: {prefix + a, "JTI=1", prefix + b}, strings.ToUpper(key): {prefix + a}}}
	if got := several.Certificates(); fmt.Sprint(got) != fmt.Sprint([]string{a, b}) {
		t.Errorf("several: %q", got)
	}
}
