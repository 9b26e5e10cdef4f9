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

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// ask is a change of a parsed request.
type ask = func(*csr.Request)

func all(asks ...ask) ask {
	return func(req *csr.Request) {
		for _, each := range asks {
			each(req)
		}
	}
}

func common(name string) ask { return func(req *csr.Request) { req.Cert.Subject.CommonName = name } }
func orgs(names ...string) ask {
	return func(req *csr.Request) { req.Cert.Subject.Organization = names }
}
func usages(usages ...usage) ask { return func(req *csr.Request) { req.Usages = usages } }
func dns(names ...string) ask    { return func(req *csr.Request) { req.Cert.DNSNames = names } }
func emails(req *csr.Request)    { req.Cert.EmailAddresses = []string{"a@example.com"} }
func addresses(req *csr.Request) { req.Cert.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }
func uris(req *csr.Request)      { req.Cert.URIs = []*url.URL{{Scheme: "urn", Opaque: "a"}} }

var kubelet = all(common("system:node:a"), orgs("system:nodes"))

// shapes has the smallest request that each shape accepts.
var shapes = map[string]struct {
	shape    func(*csr.Request) error
	smallest ask
}{
	"kubelet client":  {csr.KubeletClientShape, all(kubelet, usages("digital signature", "client auth"))},
	"kubelet serving": {csr.KubeletServingShape, all(kubelet, usages("digital signature", "server auth"), dns("a"))},
	"client":          {csr.APIServerClientShape, usages("client auth")},
}

// checkShape changes the smallest accepted request of a shape. It checks all changes for each error. An empty error means that
// the request is accepted.
func checkShape(t *testing.T, name string, rows map[string]map[string]ask) {
	t.Helper()
	t.Parallel()
	for want, changes := range rows {
		for what, change := range changes {
			req := &csr.Request{}
			shapes[name].smallest(req)
			change(req)
			if diff := cmp.Diff(want, errorText(shapes[name].shape(req))); diff != "" {
				t.Errorf("%s: error (-want +got):\n%s", what, diff)
			}
		}
	}
}

const (
	badOrganization = "subject organization is not system:nodes"
	badName         = "subject common name does not begin with system:node:"
	noDNS           = "DNS subjectAltNames are not allowed"
	noEmail         = "Email subjectAltNames are not allowed"
	noIP            = "IP subjectAltNames are not allowed"
	noURI           = "URI subjectAltNames are not allowed"
)

// TestKubeletClientShape checks each rule, and which one comes first.
func TestKubeletClientShape(t *testing.T) {
	checkShape(t, "kubelet client", map[string]map[string]ask{
		"": {
			"smallest":                all(),
			"key encipherment":        usages("digital signature", "key encipherment", "client auth"),
			"usages in another order": usages("client auth", "key encipherment", "digital signature"),
			"a node without a name":   common("system:node:"),
		},
		badOrganization: {
			"no organization":              orgs(),
			"another organization":         orgs("system:masters"),
			"one organization too many":    orgs("system:masters", "system:nodes"),
			"an organization twice":        orgs("system:nodes", "system:nodes"),
			"organization goes before DNS": all(orgs(), dns("a")),
		},
		noDNS:   {"a DNS name": dns("a"), "DNS goes before e-mail": all(dns("a"), emails)},
		noEmail: {"an e-mail address": emails, "e-mail goes before IP": all(emails, addresses)},
		noIP:    {"an IP address": addresses, "IP goes before URI": all(addresses, uris)},
		noURI:   {"a URI": uris, "URI goes before common name": all(uris, common(""))},
		badName: {
			"no common name":                common(""),
			"another common name":           common("system:nodes:a"),
			"upper case":                    common("System:node:a"),
			"common name goes before usage": all(common(""), usages()),
		},
		"usages did not match [client auth digital signature key encipherment]": {
			"no usages":               usages(),
			"no client auth":          usages("digital signature", "key encipherment"),
			"no digital signature":    usages("key encipherment", "client auth"),
			"server auth too":         usages("digital signature", "client auth", "server auth"),
			"server auth instead":     usages("digital signature", "server auth"),
			"signing, the other name": usages("signing", "client auth"),
			"unknown usage too":       usages("digital signature", "client auth", "x"),
		},
	})
}

// TestKubeletServingShape checks each rule, and which one comes first.
func TestKubeletServingShape(t *testing.T) {
	checkShape(t, "kubelet serving", map[string]map[string]ask{
		"": {
			"smallest":              all(),
			"an IP address instead": all(dns(), addresses),
			"both":                  addresses,
			"key encipherment":      usages("server auth", "digital signature", "key encipherment"),
			"a node without a name": common("system:node:"),
		},
		badOrganization: {
			"another organization":           orgs("system:masters"),
			"one organization too many":      orgs("system:nodes", "x"),
			"organization goes before names": all(orgs(), dns()),
		},
		"DNS or IP subjectAltName is required": {
			"neither name nor address": dns(), "missing names go before e-mail": all(dns(), emails)},
		noEmail: {"an e-mail address": emails, "e-mail goes before URI": all(emails, uris)},
		noURI:   {"a URI": uris, "URI goes before usages": all(uris, usages())},
		"usages did not match [digital signature key encipherment server auth]": {
			"no server auth":               usages("digital signature", "key encipherment"),
			"no digital signature":         usages("key encipherment", "server auth"),
			"client auth too":              usages("digital signature", "server auth", "client auth"),
			"client auth instead":          usages("digital signature", "client auth"),
			"usages go before common name": all(usages(), common("")),
		},
		badName: {"another common name": common("a")},
	})
}

// TestAPIServerClientShape checks each rule, and which one comes first.
func TestAPIServerClientShape(t *testing.T) {
	const invalid = "invalid usage for client certificate: "
	checkShape(t, "client", map[string]map[string]ask{
		"": {
			"smallest":              all(),
			"all that is permitted": usages("digital signature", "key encipherment", "client auth"),
			"any subject and names": all(orgs("system:masters"), dns("a"), emails, addresses, uris),
		},
		"missing required usage for client certificate: client auth": {
			"no usages": usages(), "no client auth": usages("digital signature", "key encipherment")},
		invalid + "server auth":  {"server auth": usages("client auth", "server auth")},
		invalid + "code signing": {"the first one is named": usages("code signing", "any", "client auth")},
		invalid + "any":          {"invalid goes before none": usages("any")},
		invalid + "signing":      {"signing, the other name": usages("signing", "client auth")},
		invalid + "x":            {"an unknown one": usages("client auth", "x")},
	})
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
	for _, unknown := range []usage{"", "Client Auth", "client auth ", "1.3.6.1.5.5.7.3.2", "non repudiation", "microsoft smartcard"} {
		check(0, nil, []usage{unknown}, unknown)
	}
	check(0, nil, nil)
	check(x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature, nil, nil, "cert sign", "signing", "signing")
	sorted := []x509.ExtKeyUsage{x509.ExtKeyUsageAny, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageEmailProtection}
	check(0, sorted, nil, "s/mime", "client auth", "server auth", "s/mime", "client auth", "any")
	check(0, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, []usage{"z", "a"}, "z", "client auth", "a")
}

// TestIsNode checks the rule of the node authorizer: a user name with a node's name, and the group of nodes.
func TestIsNode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		user   string
		groups []string
		want   bool
	}{
		"smallest":         {"system:node:a", []string{"system:nodes"}, true},
		"another group":    {"system:node:a", []string{"b", "system:nodes"}, true},
		"not in the group": {"system:node:a", []string{"system:node"}, false},
		"no name":          {"system:node:", []string{"system:nodes"}, false},
		"another prefix":   {"system:nodea", []string{"system:nodes"}, false},
		"no user":          {"", []string{"system:nodes"}, false},
	} {
		if got := (csr.Requester{Username: test.user, Groups: test.groups}).IsNode(); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

// TestOtherSubject sets one attribute after another.
func TestOtherSubject(t *testing.T) {
	t.Parallel()
	value := []string{"x"}
	for want, subject := range map[string]pkix.Name{
		"": {CommonName: "a", Organization: value}, "C=x": {Country: value}, "OU=x": {OrganizationalUnit: value},
		"L=x": {Locality: value}, "ST=x": {Province: value}, "STREET=x": {StreetAddress: value}, "POSTALCODE=x": {PostalCode: value},
		"SERIALNUMBER=x": {SerialNumber: "x"}, "C=x SERIALNUMBER=x": {SerialNumber: "x", Country: value},
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
	var all []string
	for i := range 11 {
		all = append(all, fmt.Sprintf("text %d", i))
	}
	for count, more := range map[int][]string{0: nil, 1: nil, 8: nil, 9: {"and 1 more"}, 11: {"and 3 more"}} {
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
	permitted := regexp.MustCompile(`\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z`)
	for node, hash := range map[string]string{ // printf '%s' NODE | sha256sum
		"worker-1":               "13029f9e83d15b3d437c2a7568fc1ca7990ecf3ff79bef6da08f13ff5ae12af8",
		"":                       "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		strings.Repeat("a", 253): "32859a3ab65ac52932e16fad6060653636d6746f52b4cb205f4f121569c499f5",
	} {
		if got := csr.TokenGroup(node); got != "system:bootstrappers:node:"+hash || !permitted.MatchString(got) {
			t.Errorf("TokenGroup(%q) = %s", node, got)
		}
	}
}

// TestCertificates checks which credential IDs stand for a certificate.
func TestCertificates(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("0a", 32), strings.Repeat("f9", 32)
	const prefix = "X509SHA256="
	for name, test := range map[string]struct {
		ids  []string
		want []string
	}{
		"no ID":                      {nil, nil},
		"a certificate":              {[]string{prefix + a}, []string{a}},
		"a token":                    {[]string{"JTI=0c1ccc3e-7dfd-4b9e-9c8a-6a3f4d3f9b11"}, nil},
		"a digest without a prefix":  {[]string{a}, nil},
		"upper-case digits":          {[]string{prefix + strings.ToUpper(a)}, []string{a}},
		"a lower-case prefix":        {[]string{"x509sha256=" + a}, nil},
		"too short":                  {[]string{prefix + a[2:]}, nil},
		"too long":                   {[]string{prefix + a + "00"}, nil},
		"no hex digits":              {[]string{prefix + strings.Repeat("0g", 32)}, nil},
		"a space at the end":         {[]string{prefix + a + " "}, nil},
		"a prefix alone":             {[]string{prefix, ""}, nil},
		"several":                    {[]string{prefix + a, "JTI=1", prefix + b}, []string{a, b}},
		"two certificates in one ID": {[]string{prefix + a + "," + b}, nil},
	} {
		requester := csr.Requester{Extra: map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": test.ids}}
		if got := requester.Certificates(); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	other := csr.Requester{Extra: map[string]certificatesv1.ExtraValue{"Authentication.Kubernetes.io/credential-id": {prefix + a}}}
	if got := other.Certificates(); got != nil {
		t.Errorf("another key counts: %q", got)
	}
}
