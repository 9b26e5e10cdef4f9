//go:build parityfuzz

package parity

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// random makes requests. Values that mean something are more frequent than by chance.
type random struct{ *rand.Rand }

func newRandom(seed uint64) random { return random{rand.New(rand.NewPCG(seed, 0))} }

// oneOf returns one of all.
func oneOf[T any](g random, all ...T) T { return all[g.IntN(len(all))] }

// some returns up to n of all, each at most once.
func some[T any](g random, n int, all ...T) []T {
	var chosen []T
	for _, at := range g.Perm(len(all))[:g.IntN(min(n, len(all))+1)] {
		chosen = append(chosen, all[at])
	}
	return chosen
}

// sample is a random request, with the ids of the deviations that may apply to it.
type sample struct {
	row
	traits []string
}

// rows returns n random requests.
func (g random) rows(t *testing.T, n int) map[string]sample {
	t.Helper()
	rows := map[string]sample{}
	for i := range n {
		r := g.row()
		request, err := r.pem()
		if err != nil {
			continue // PKCS#10 has no form for it, such as a DNS name that is not ASCII
		}
		r.payload = func([]byte) []byte { return request } // both programs get the same bytes
		s := sample{r, traits(r)}
		if len(s.traits) > 0 && len(r.conditions) > 0 {
			s.conditions = justApproved // the table lists deviations of new and of approved requests
			s.traits = traits(s.row)    // a bound token counts before a decision only
		}
		rows[fmt.Sprintf("%03d", i)] = s
	}
	if len(rows) < n/2 {
		t.Fatalf("only %d of %d requests have a form", len(rows), n)
	}
	return rows
}

// row returns a request that a table could have as its base, with up to four changes.
func (g random) row() row {
	r := oneOf(g, node, node, node, byHand, byHand, client, client, client, serving, serving, legacy)
	r.want, r.ours, r.deviation = "", "", ""
	if r.subject != nil {
		copied := *r.subject
		r.subject = &copied
	}
	for range g.IntN(5) {
		oneOf(g, changes...)(g, &r)
	}
	if r.signer == legacyUnknown {
		r.stored = true // the API server accepts no new ones
	}
	return r
}

var changes = []func(random, *row){
	random.signerName, random.usage, random.usage, random.subjectOf, random.subjectOf, random.rawName, random.dns, random.dns, random.otherNames,
	random.extension, random.keyKind, random.keyKind, random.lifetime, random.lifetime, random.requester, random.requester, random.decided,
	random.encoding, random.oddEncoding, random.huge,
}

func (g random) signerName(r *row) {
	r.signer = oneOf(g, apiserverClient, kubeletClient, kubeletServing, "example.com/client", "kubernetes.io/parity", legacyUnknown)
}

func (g random) usage(r *row) {
	all := []certificatesv1.KeyUsage{
		"digital signature", "key encipherment", "client auth", "server auth", "signing", "content commitment", "key agreement", "data encipherment",
		"cert sign", "crl sign", "encipher only", "decipher only", "any", "code signing", "email protection", "s/mime", "ipsec end system",
		"ipsec tunnel", "ipsec user", "timestamping", "ocsp signing", "microsoft sgc", "netscape sgc",
	}
	r.usages = oneOf(g,
		usages("digital signature", "client auth"), usages("client auth", "key encipherment", "digital signature"),
		usages("digital signature", "server auth"), usages("server auth", "key encipherment", "digital signature"),
		usages("client auth"), some(g, 4, all[:4]...), some(g, 5, all...),
	)
	if len(r.usages) == 0 {
		r.usages = usages("any")
	}
}

func (g random) text() string {
	return oneOf(g, "", "a", "n1", "system:node:n1", "system:node:", "system:nodes", "system:masters", "system:Nodes", " system:nodes", "Größe", "名",
		"a,b", "a+b=c", "\"a\"", "x\x00y", "*", "system:node:n1\n", strings.Repeat("l", 1+g.IntN(300)))
}

func (g random) subjectOf(r *row) {
	subject := nodeName(oneOf(g, "n1", "n2", "N1", "", "a b", "n1.example.org"))
	for range 1 + g.IntN(2) {
		switch g.IntN(6) {
		case 0:
			subject.CommonName = g.text()
		case 1:
			subject.Organization = some(g, 3, "system:nodes", "system:masters", "b", "a", g.text())
		case 2:
			subject.Organization = append(subject.Organization, g.text())
		case 3:
			subject.OrganizationalUnit, subject.Country = some(g, 2, "b", "a"), some(g, 2, "DE", "FR")
		case 4:
			subject.SerialNumber, subject.Locality, subject.Province = g.text(), some(g, 2, "l"), some(g, 1, "p")
		case 5:
			subject.StreetAddress, subject.PostalCode = some(g, 2, "s", "t"), some(g, 1, "1")
		}
	}
	r.subject, r.rawSubject = subject, nil
}

// rawName encodes a subject that crypto/x509 would not write.
func (g random) rawName(r *row) {
	var attributes []attribute
	for range g.IntN(6) {
		oid := oneOf(g, commonName, organization, organization, serialNumber, userID, domainComponent, asn1.ObjectIdentifier{1, 2, 3, g.IntN(3)},
			asn1.ObjectIdentifier{2, 5, 4, g.IntN(20)})
		attributes = append(attributes, attribute{oid, strings.ToValidUTF8(g.text(), "")})
	}
	if g.IntN(2) == 0 {
		attributes = append(attributes, attribute{organization, "system:nodes"}, attribute{commonName, "system:node:n1"})
	}
	encode := oneOf(g, name, oneRDN)
	if len(attributes) > 0 {
		r.rawSubject = encode(attributes...)
	}
}

// The DNS names of random requests. A signer of ours issues no certificate with one of badNames.
var (
	goodNames = []string{
		"n1", "n1.example.org", "A.example.org.", "*.example.org", "_a", "kubernetes", "10.0.0.1", "fd00::1", "xn--a", "a.b.c", "a-",
		strings.Repeat("a.", 120) + "a", strings.Repeat("l", 64), "010.0.0.1",
	}
	badNames = []string{
		"a, DNS:b", "fd00::1%eth0", "::ffff:10.0.0.1", "a..b", "-a", ".", "*", "a.*", "a b", "a\x00", strings.Repeat("a.", 127) + "a", "a:443", "http://a",
	}
)

func (g random) dns(r *row) {
	r.names.DNSNames = some(g, 4, slices.Concat(goodNames, badNames)...)
}

func (g random) otherNames(r *row) {
	addresses := []net.IP{net.IPv4(10, 0, 0, 1).To4(), net.IPv6loopback, net.ParseIP("fd00::1"), net.IPv4zero.To4(), net.ParseIP("::ffff:10.0.0.1")}
	uris := []*url.URL{spiffe, {Scheme: "https", Host: "a.example.org:1", Path: "/%41", RawQuery: "a=b"}, {Scheme: "urn", Opaque: "a"}}
	r.names.IPAddresses, r.names.URIs = some(g, 3, addresses...), some(g, 1, uris...)
	r.names.EmailAddresses = some(g, 1, "a@example.org", "A@b", "\"a b\"@c.d")
}

func (g random) extension(r *row) {
	r.names.ExtraExtensions = oneOf(g, askForCA, custom, otherName, slices.Concat(askForCA, custom))
}

func (g random) keyKind(r *row) {
	r.key = oneOf(g, "P-256", "P-384", "P-521", "Ed25519", "RSA-2048", "RSA-4096", "RSA-1024", "P-224")
}

func (g random) lifetime(r *row) {
	r.seconds = oneOf(g, 600, 601, 3600, 8*3600-1, 8*3600, 8*3600+1, 24*3600, 24*3600+1, 1<<31-1, 600+g.Int32N(48*3600))
	if r.stored {
		r.seconds = oneOf(g, r.seconds, 1, -1, 599, -1<<31)
	}
}

func (g random) requester(r *row) {
	groups := some(g, 3, "parity:bootstrappers", "parity:renewers", "system:nodes", "system:bootstrappers")
	sum := sha256.Sum256([]byte("n1"))
	r.user = oneOf(g, bootstrapper, stranger, nodeUser("n1", groups...), nodeUser("n2", groups...), nodeUser("", groups...), user{name: "named", groups: stranger.groups},
		boundUser(hex.EncodeToString(sum[:])), boundUser("0123456789abcdef"), boundUser(""),
		user{name: strings.Map(header, g.text()), groups: append(groups, "system:authenticated")})
	if r.user.name == "" {
		r.user.name = "x"
	}
}

// header drops the characters that the header Impersonate-User can't hold.
func header(r rune) rune {
	if unicode.IsControl(r) {
		return -1
	}
	return r
}

func (g random) decided(r *row) {
	r.conditions = oneOf(g, nil, justApproved, justApproved, conditions(since("Denied", 0)), conditions(since("Failed", 0)), conditions(since("Example", 0)),
		conditions(since("Approved", 0), since("Failed", 0)), conditions(since("Example", 0), since("Approved", 0)))
}

// encoding selects a form of PEM that the API server accepts.
func (g random) encoding(r *row) {
	r.payload = oneOf(g, trailing, textBefore, carriageReturns, secondBlock, withHeaders)
}

// oddEncoding selects a form that only an older API server could have stored.
func (g random) oddEncoding(r *row) {
	r.stored = true
	position, bit := g.Float64(), byte(1)<<g.IntN(8)
	flip := func(request []byte) []byte {
		block, _ := pem.Decode(request)
		block.Bytes[int(position*float64(len(block.Bytes)))] ^= bit
		return pem.EncodeToMemory(block)
	}
	cut := func(request []byte) []byte { return request[:int(position*float64(len(request)))] }
	spoil := func(request []byte) []byte {
		spoiled := bytes.Clone(request)
		spoiled[int(position*float64(len(request)))] ^= bit
		return spoiled
	}
	r.payload = oneOf(g, otherBlockFirst, newBlockType, noPEM, badSignature, garbage, flip, flip, cut, spoil, spoil)
}

// huge goes up to our limits, or beyond. It is rare, because such requests are slow.
func (g random) huge(r *row) {
	if g.IntN(4) > 0 {
		return
	}
	switch g.IntN(4) {
	case 0:
		r.rawSubject = name(append(slices.Repeat([]attribute{{organization, "o"}}, 250+g.IntN(12)), attribute{commonName, "x"})...)
	case 1:
		r.names.DNSNames = slices.Repeat([]string{"a.example.org"}, 995+g.IntN(12))
	case 2:
		comment := strings.Repeat("#", 120<<10+g.IntN(16<<10))
		r.payload = func(request []byte) []byte { return append(request, comment...) }
	case 3:
		for i := range 92 + g.IntN(16) {
			r.names.ExtraExtensions = append(r.names.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3, i}, Value: []byte{5, 0}})
		}
	}
}

// traits returns the ids of the deviations that may apply to r. It measures the request itself, with crypto/x509.
func traits(r row) []string {
	var all []string
	add := func(has bool, id string) {
		if has {
			all = append(all, id)
		}
	}
	request, payload := r.parsed()
	add(r.signerName() == legacyUnknown, "legacy-unknown")
	add(len(request) > 128<<10, "too-large")
	if payload == nil {
		return all
	}
	names := len(payload.DNSNames) + len(payload.EmailAddresses) + len(payload.IPAddresses) + len(payload.URIs)
	add(len(payload.Raw) > 64<<10 || len(payload.Subject.Names) > 256 || names > 1000 || len(payload.Extensions)+1 > 100, "too-large")
	add(r.key == "RSA-1024", "weak-rsa-key")
	add(r.key == "P-224", "key-not-permitted")
	add(slices.ContainsFunc(payload.DNSNames, func(name string) bool { return !isGoodName(name) }), "bad-name")
	reserved := func(name string) bool {
		return strings.HasPrefix(name, "system:") || strings.HasPrefix(name, "kubeadm:")
	}
	add(r.signerName() == apiserverClient &&
		slices.ContainsFunc(append(payload.Subject.Organization, payload.Subject.CommonName), reserved), "forbidden-subject")
	bound := slices.DeleteFunc(slices.Clone(r.user.groups), func(group string) bool { return !strings.HasPrefix(group, "system:bootstrappers:node:") })
	sum := sha256.Sum256([]byte(strings.TrimPrefix(payload.Subject.CommonName, "system:node:")))
	decided := slices.ContainsFunc(r.conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
	})
	add(!decided && len(bound) > 0 && !slices.Contains(bound, "system:bootstrappers:node:"+hex.EncodeToString(sum[:])), "bound-token")
	return all
}

// isGoodName reports whether a signer of ours may issue a certificate with name. A flipped bit makes names that are in
// neither list: their characters and labels decide.
func isGoodName(name string) bool {
	switch {
	case slices.Contains(goodNames, name):
		return true
	case slices.Contains(badNames, name):
		return false
	case net.ParseIP(name) != nil:
		return net.ParseIP(name).String() == name
	}
	return len(strings.TrimSuffix(name, ".")) <= 253 && dnsName.MatchString(name)
}

var dnsName = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*\.?$`)

// TestTraitsAreListed checks that each trait is a deviation of the table.
func TestTraitsAreListed(t *testing.T) {
	t.Parallel()
	for _, r := range []row{
		{signer: legacyUnknown}, {key: "RSA-1024"}, {key: "P-224"}, {names: sans("a..b")}, {subject: &pkix.Name{Organization: []string{"system:masters"}}},
		{user: boundUser("x")}, {names: sans(slices.Repeat([]string{"a"}, 1001)...)}, {payload: func(request []byte) []byte { return append(request, make([]byte, 128<<10)...) }},
	} {
		found := traits(r)
		listed := false
		for _, each := range table {
			listed = listed || len(found) == 1 && each.deviation == found[0]
		}
		if !listed {
			t.Errorf("traits %q, want one deviation of the table", found)
		}
	}
	if found := traits(client); len(found) > 0 {
		t.Errorf("a usual request has the traits %q", found)
	}
}
