package csr_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestParse compares the whole request. Nothing of it is dropped.
func TestParse(t *testing.T) {
	t.Parallel()
	uri := must(url.Parse("spiffe://example.com/a"))
	subject := pkix.Name{
		Country: []string{"DE"}, Province: []string{"BE"}, Locality: []string{"Berlin"}, StreetAddress: []string{"Weg 1"}, PostalCode: []string{"1"},
		Organization: []string{"a", "b"}, OrganizationalUnit: []string{"u"}, CommonName: "name", SerialNumber: "7",
	}
	seconds, asked := int32(3600), []usage{"server auth", "key encipherment", "nonsense", "client auth"}
	got := parse(withRequest(der(&x509.CertificateRequest{
		Subject: subject, DNSNames: []string{"a.example.com"}, EmailAddresses: []string{"a@example.com"},
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}, URIs: []*url.URL{uri},
	})), func(obj *request) { obj.Spec.Usages, obj.Spec.ExpirationSeconds = asked, &seconds })
	want := &csr.Request{
		Name: "csr-1", UID: "uid-1", SignerName: "kubernetes.io/kube-apiserver-client-kubelet", Created: now,
		Requester: csr.Requester{
			Username: "system:bootstrap:abcdef", UID: "user-uid", Groups: []string{"system:bootstrappers", "system:authenticated"},
			Extra: map[string]certificatesv1.ExtraValue{"key": {"a", "b"}},
		},
		Usages:        asked,
		UnknownUsages: []usage{"nonsense"},
		Cert: ca.Request{
			PublicKey: leafKey().Public(), Subject: subject, DNSNames: []string{"a.example.com"}, EmailAddresses: []string{"a@example.com"},
			IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1).To4()}, URIs: []*url.URL{uri},
			KeyUsage:    x509.KeyUsageKeyEncipherment,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			Lifetime:    time.Hour,
		},
	}
	same := cmp.Options{
		cmpopts.IgnoreUnexported(csr.Request{}),
		cmp.Comparer(func(a, b *ecdsa.PublicKey) bool { return a.Equal(b) }),
	}
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(must(x509.MarshalPKIXPublicKey(leafKey().Public())))); got.KeyFingerprint() != want {
		t.Errorf("key fingerprint %s, want %s", got.KeyFingerprint(), want)
	}
}

// TestParseLifetime checks the requested lifetime. Without one it is zero.
func TestParseLifetime(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int32]time.Duration{600: 10 * time.Minute, 0: 1, -1: -time.Second, 1e9: 1e9 * time.Second} {
		if got := parse(func(obj *request) { obj.Spec.ExpirationSeconds = &seconds }).Cert.Lifetime; got != want {
			t.Errorf("%d seconds became %s", seconds, got)
		}
	}
	if got := parse().Cert.Lifetime; got != 0 {
		t.Errorf("no wish became %s", got)
	}
}

// TestMalformed checks why spec.request can't be read. FuzzPayload compares which payloads can be read.
func TestMalformed(t *testing.T) {
	t.Parallel()
	badSAN := nodeRequest()
	badSAN.ExtraExtensions = []pkix.Extension{{Id: oidSAN, Value: []byte{4, 1, 0}}}
	const noPEM = "spec.request is not a PEM block of type CERTIFICATE REQUEST"
	const noRequest = "spec.request is not a valid PKCS#10 request: "
	for want, data := range map[string][]byte{
		noPEM: der(nodeRequest()),
		noRequest + "asn1: syntax error: sequence truncated":                            block("CERTIFICATE REQUEST", nil),
		noRequest + "asn1: syntax error: trailing data":                                 block("CERTIFICATE REQUEST", append(der(nodeRequest()), 0)),
		noRequest + "x509: invalid subject alternative names":                           block("CERTIFICATE REQUEST", der(badSAN)),
		noRequest + "x509: certificate request contains duplicate requested extensions": block("CERTIFICATE REQUEST", derOf(dnsNames(1), dnsNames(1))),
	} {
		_, err := csr.Parse(object(payload(data)))
		var refused *csr.Refused
		if errorText(err) != want || !errors.As(err, &refused) || refused.Reason != "Malformed" {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestNodeOf checks the node in the subject of a request and of a certificate. The record of a certificate holds no name that is
// too long for a Node.
func TestNodeOf(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("n", 253)
	for common, want := range map[string][2]string{
		"system:node:b": {"b", "b"}, "alice": {}, "system:node:": {}, "system:node:" + longest: {longest, longest},
		"system:node:n" + longest: {"n" + longest},
	} {
		subject := pkix.Name{CommonName: common}
		got := csr.Limits{}.NodeOf(object(withRequest(der(&x509.CertificateRequest{Subject: subject}))))
		made := certificateOf(&x509.Certificate{Subject: subject, NotBefore: now, NotAfter: now})
		if record, readable := csr.Certificate(transformed(csr.Trim{}, issued(made))); !readable || got != want[0] || record.Node != want[1] {
			t.Errorf("%q: node %q, in the certificate %q, readable: %t", common, got, record.Node, readable)
		}
	}
	if got := (csr.Limits{RequestBytes: 100}).NodeOf(object()); got != "" {
		t.Errorf("above the limit: %q", got)
	}
}

// TestProof checks whether a certificate is for the key of a request, and whether its signature proves possession of that key. A
// signature with SHA-1 counts too.
func TestProof(t *testing.T) {
	t.Parallel()
	other := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)).Public()
	for key, want := range map[any]bool{leafKey().Public(): true, other: false, nil: false} {
		if got := parse().KeyIn(&x509.Certificate{PublicKey: key}); got != want {
			t.Errorf("%t, want %t", got, want)
		}
	}
	renamed := bytes.Replace(der(nodeRequest()), []byte("system:node:a"), []byte("system:node:b"), 1)
	const want = "the signature in spec.request does not match its public key: x509: ECDSA verification failure"
	if err := parse(withRequest(renamed)).CheckSignature(); errorText(err) != want {
		t.Errorf("changed after it was signed: error %v", err)
	}
	if err := parse(withRequest(signedWith(crypto.SHA1))).CheckSignature(); err != nil {
		t.Errorf("SHA-1: %v", err)
	}
}

// TestPanicOfTheParserIsAnError checks that the error is not final. Informers call the parser in goroutines that do not
// recover, where a panic would end the process.
//
//nolint:paralleltest // it replaces the parser of the whole package
func TestPanicOfTheParserIsAnError(t *testing.T) {
	defer csr.ReplaceParser(func([]byte) (*x509.CertificateRequest, error) { panic("index out of range") })()
	req, err := csr.Parse(object())
	var refused *csr.Refused
	if req != nil || errorText(err) != "read spec.request of csr-1: panic: index out of range" || errors.As(err, &refused) {
		t.Errorf("request %v, error %v: want an error that is not final", req, err)
	}
}

// units returns count organizational units.
func units(count int, value string) []pkix.AttributeTypeAndValue {
	return slices.Repeat([]pkix.AttributeTypeAndValue{attr(oidUnit, value)}, count)
}

func dnsNames(count int) change {
	return names(slices.Repeat([]asn1.RawValue{generalName(2, false, []byte("a"))}, count)...)
}

// unknownExtensions requests count unknown extensions in one attribute.
func unknownExtensions(count int) change {
	var all []pkix.Extension
	for i := range count {
		all = append(all, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, i}, Value: []byte{5, 0}})
	}
	return extensions(all...)
}

// key replaces the key by one that need not exist. The signature does not match it.
func key(parameters asn1.RawValue, key []byte, id ...int) change {
	return func(said *content) {
		said.PublicKey = raw(struct {
			Algorithm pkix.AlgorithmIdentifier
			Key       asn1.BitString
		}{pkix.AlgorithmIdentifier{Algorithm: id, Parameters: parameters}, asn1.BitString{Bytes: key, BitLength: 8 * len(key)}})
	}
}

func rsaKey(bits int, exponent int64) change {
	public := struct{ N, E *big.Int }{new(big.Int).SetBit(big.NewInt(1), bits-1, 1), big.NewInt(exponent)}
	return key(asn1.NullRawValue, must(asn1.Marshal(public)), 1, 2, 840, 113549, 1, 1, 1)
}

// TestParseRefusesBeforeItReads checks each limit, from both sides, and each kind of key.
func TestParseRefusesBeforeItReads(t *testing.T) {
	t.Parallel()
	tooLarge := func(message, setting string) string {
		return "RequestTooLarge: " + message + " (requestLimits." + setting + ")"
	}
	badKey := func(message string) string {
		return "KeyNotPermitted: " + message + "; use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519"
	}
	attributes := tooLarge("the subject has more than 256 attributes", "maxSubjectAttributes")
	thousand := tooLarge("the request asks for more than 1000 names and addresses", "maxNames")
	three := tooLarge("the request asks for more than 3 names and addresses", "maxNames")
	hundred := tooLarge("the request holds more than 100 attributes and extensions", "maxExtensions")
	other := generalName(0, true, must(asn1.Marshal("text")))
	texts := pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: must(asn1.Marshal([]string{"a", "b", "c", "d"}))}
	fourNames := pkix.Extension{Id: oidSAN, Value: must(asn1.Marshal(slices.Repeat([]asn1.RawValue{other}, 4)))}
	emptyRDNs := func(said *content) { said.Subject = raw(append(make(pkix.RDNSequence, 255), units(2, "u"))) }
	manyAttributes := func(said *content) {
		said.Attributes = slices.Repeat([]asn1.RawValue{attribute(asn1.ObjectIdentifier{1, 2, 3}, raw([]int{1}, "set"))}, 101)
	}
	secp256k1 := key(raw(asn1.ObjectIdentifier{1, 3, 132, 0, 10}), []byte{4, 1, 1}, 1, 2, 840, 10045, 2, 1)
	mlDSA := key(asn1.RawValue{}, make([]byte, 1952), 2, 16, 840, 1, 101, 3, 4, 3, 18)
	usual := csr.Limits{}
	for name, test := range map[string]struct {
		limits csr.Limits
		change change
		want   string // empty means that the request is read
	}{
		"256 subject attributes":      {usual, subject(units(256, "u")...), ""},
		"257 subject attributes":      {usual, both(subject(units(257, "u")...), rsaKey(65536, 3)), attributes}, // before the key is read
		"255 empty RDNs and another":  {usual, emptyRDNs, attributes},
		"more than 10 are configured": {csr.Limits{SubjectAttributes: 10}, subject(units(11, "u")...), strings.Replace(attributes, "256", "10", 1)},
		"1000 names":                  {usual, dnsNames(1000), ""},
		"1001 names":                  {usual, dnsNames(1001), thousand},
		"names of two attributes":     {csr.Limits{Names: 3}, both(dnsNames(2), dnsNames(2)), three},
		"names after an extension":    {csr.Limits{Names: 3}, extensions(texts, fourNames), three},
		"100 extensions":              {usual, unknownExtensions(100), hundred},
		"101 attributes":              {usual, manyAttributes, hundred},
		"more than 64 KiB of DER": {usual, subject(attr(oidCommonName, strings.Repeat("x", 65<<10))),
			tooLarge("the PKCS#10 request in spec.request has more than 65536 bytes of DER", "maxDERBytes")},
		"RSA of 8192 bits": {usual, rsaKey(8192, 65537), ""},
		"RSA of 8193 bits": {usual, rsaKey(8193, 65537), badKey("RSA keys of 8193 bits are not permitted")},
		"secp256k1":        {usual, secp256k1, badKey("the public key can't be read: x509: unsupported elliptic curve")},
		"ML-DSA-65":        {usual, mlDSA, badKey("the public key can't be read: x509: unknown public key algorithm")},
	} {
		if got := refusal(test.limits, derOf(test.change)); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}

	// A request that is exactly as large as a limit is read. Trailing data is found before anything is counted.
	request := der(nodeRequest())
	pem := block("CERTIFICATE REQUEST", request)
	for _, test := range []struct {
		limits csr.Limits
		data   []byte
		want   string
	}{
		{csr.Limits{RequestBytes: len(pem)}, request, ""},
		{csr.Limits{RequestBytes: len(pem) - 1}, request, tooLarge(fmt.Sprintf("spec.request has more than %d bytes", len(pem)-1), "maxRequestBytes")},
		{csr.Limits{DERBytes: len(request)}, request, ""},
		{csr.Limits{DERBytes: len(request) - 1}, request,
			tooLarge(fmt.Sprintf("the PKCS#10 request in spec.request has more than %d bytes of DER", len(request)-1), "maxDERBytes")},
		{csr.Limits{SubjectAttributes: 1}, append(bytes.Clone(request), 0),
			"Malformed: spec.request is not a valid PKCS#10 request: asn1: syntax error: trailing data"},
	} {
		if got := refusal(test.limits, test.data); got != test.want {
			t.Errorf("%+v: %q, want %q", test.limits, got, test.want)
		}
	}
}

// refusal returns the reason and message of the final error about a request, or "" if it is read.
func refusal(limits csr.Limits, der []byte) string {
	req, err := limits.Parse(object(withRequest(der)))
	var refused *csr.Refused
	switch {
	case errors.As(err, &refused):
		return refused.Reason + ": " + refused.Message
	case err != nil || req == nil:
		return fmt.Sprintf("not final: %v", err)
	}
	return ""
}

// TestParserRunsOnlyWithinTheLimits checks that crypto/x509 never gets a refused request, so its behaviour for oversize
// input does not matter.
//
//nolint:paralleltest // it replaces the parser of the whole package
func TestParserRunsOnlyWithinTheLimits(t *testing.T) {
	ran := 0
	defer csr.ReplaceParser(func(der []byte) (*x509.CertificateRequest, error) {
		ran++
		return x509.ParseCertificateRequest(der)
	})()
	for _, change := range []change{subject(units(257, "u")...), dnsNames(1001), rsaKey(8193, 65537)} {
		if got := refusal(csr.Limits{}, derOf(change)); got == "" || ran > 0 {
			t.Errorf("the parser ran %d times, %q", ran, got)
		}
	}
	if got := refusal(csr.Limits{}, derOf()); got != "" || ran != 1 {
		t.Errorf("a request within the limits: the parser ran %d times, %q", ran, got)
	}
}

var (
	oidCommonName       = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidOrganization     = asn1.ObjectIdentifier{2, 5, 4, 10}
	oidUnit             = asn1.ObjectIdentifier{2, 5, 4, 11}
	oidEmail            = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}
	oidUserID           = asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}
	oidSAN              = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidExtensionRequest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14}
	oidChallenge        = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7}
)

func attr(id asn1.ObjectIdentifier, value any) pkix.AttributeTypeAndValue {
	return pkix.AttributeTypeAndValue{Type: id, Value: value}
}

// subject sets a subject with one RDN for each attribute.
func subject(attributes ...pkix.AttributeTypeAndValue) change {
	return func(said *content) {
		var name pkix.RDNSequence
		for _, attribute := range attributes {
			name = append(name, pkix.RelativeDistinguishedNameSET{attribute})
		}
		said.Subject = raw(name)
	}
}

func node(more ...pkix.AttributeTypeAndValue) change {
	name := []pkix.AttributeTypeAndValue{attr(oidOrganization, "system:nodes"), attr(oidCommonName, "system:node:a")}
	return subject(append(name, more...)...)
}

// asking adds an attribute with values, such as a set of lists of extensions.
func asking(id asn1.ObjectIdentifier, values asn1.RawValue) change {
	return func(said *content) { said.Attributes = append(said.Attributes, attribute(id, values)) }
}

func attribute(id asn1.ObjectIdentifier, values asn1.RawValue) asn1.RawValue {
	return raw(struct {
		ID     asn1.ObjectIdentifier
		Values asn1.RawValue
	}{id, values})
}

func extensions(wanted ...pkix.Extension) change {
	return asking(oidExtensionRequest, raw([]asn1.RawValue{raw(wanted)}, "set"))
}

func names(wanted ...asn1.RawValue) change {
	return extensions(pkix.Extension{Id: oidSAN, Value: must(asn1.Marshal(wanted))})
}

func generalName(tag int, compound bool, value []byte) asn1.RawValue {
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, IsCompound: compound, Bytes: value}
}

// TestDropped checks which requested content no certificate will hold.
func TestDropped(t *testing.T) {
	t.Parallel()
	dns, text := generalName(2, false, []byte("a.example.com")), must(asn1.Marshal("text"))
	email, uri, ip := generalName(1, false, []byte("a@b")), generalName(6, false, []byte("urn:a")), generalName(7, false, []byte{10, 0, 0, 1})
	utf8 := subject(attr(oidOrganization, raw("system:nodes", "utf8")), attr(oidCommonName, raw("system:node:a", "utf8")))
	san := pkix.Extension{Id: oidSAN, Value: must(asn1.Marshal([]asn1.RawValue{dns}))}
	isCA := pkix.Extension{Id: oidBasicConstraints, Value: []byte{0x30, 3, 1, 1, 0xff}}
	isCA.Critical = true
	challenge := asking(oidChallenge, raw([]string{"secret"}, "set"))
	invalid := func(said *content) { said.Attributes = append(said.Attributes, raw(7)) }
	twoLists := raw([]asn1.RawValue{raw([]pkix.Extension{san}), raw([]pkix.Extension{isCA})}, "set") // DER orders them: isCA comes first
	for name, test := range map[string]struct {
		change change
		want   string
	}{
		"honest":                     {both(), ""},
		"UTF8String as OpenSSL does": {utf8, ""},
		"names of the four kinds":    {names(email, dns, uri, ip), ""},

		"e-mail":                  {node(attr(oidEmail, raw("a@example.com", "ia5"))), "subject attribute 1.2.840.113549.1.9.1"},
		"two common names":        {node(attr(oidCommonName, "system:node:b")), "subject attribute 2.5.4.3"},
		"a value that is no text": {node(attr(oidOrganization, 7)), "subject attribute 2.5.4.10"},

		"otherName":              {names(dns, generalName(0, true, text)), "subjectAltName otherName"},
		"registeredID":           {names(generalName(8, false, []byte{42})), "subjectAltName registeredID"},
		"an unknown kind":        {names(generalName(9, false, text)), "subjectAltName tag 9"},
		"a DNS name in pieces":   {names(generalName(2, true, text)), "subjectAltName tag 2"},
		"bytes after the names":  {extensions(pkix.Extension{Id: oidSAN, Value: []byte{0x30, 0, 5, 0}}), "subjectAltName trailing data"},
		"a string without a tag": {names(raw("a.example.com")), "subjectAltName tag 19"},

		"an invalid attribute before another": {both(invalid, challenge), "attribute 1.2.840.113549.1.9.7, malformed attribute"},
		"challenge password":                  {challenge, "attribute 1.2.840.113549.1.9.7"},
		"a second list of extensions":         {asking(oidExtensionRequest, twoLists), "attribute 1.2.840.113549.1.9.14, extension 2.5.29.19"},
		"extensions in no set": {asking(oidExtensionRequest, raw([]asn1.RawValue{raw([]pkix.Extension{san})})),
			"attribute 1.2.840.113549.1.9.14"},
	} {
		req := parse(withRequest(derOf(test.change)))
		if diff := cmp.Diff(test.want, strings.Join(req.Dropped, ", ")); diff != "" {
			t.Errorf("%s: dropped (-want +got):\n%s", name, diff)
		}
		if err := req.CheckSignature(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
