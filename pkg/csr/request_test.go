package csr_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	_ "crypto/sha1" // crypto.SHA1
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// now is the time of every test.
var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

var leafKey = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

type (
	request = certificatesv1.CertificateSigningRequest
	usage   = certificatesv1.KeyUsage
	// edit is a change of a request, and change one of its payload.
	edit   = func(*request)
	change = func(*content)
)

// content is the content of a PKCS#10 request (RFC 2986 section 4.1). It permits changes that an encoder refuses to
// make.
type content struct {
	Version    int
	Subject    asn1.RawValue
	PublicKey  asn1.RawValue
	Attributes []asn1.RawValue `asn1:"tag:0"`
}

// nodeRequest returns the template of a kubelet's request for a client certificate.
func nodeRequest() *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}}
}

// der returns the request of template as crypto/x509, and therefore a kubelet, writes it.
func der(template *x509.CertificateRequest) []byte {
	return must(x509.CreateCertificateRequest(rand.Reader, template, leafKey()))
}

// derOf returns a kubelet's request after changes, signed again.
func derOf(changes ...change) []byte { return signedWith(crypto.SHA256, changes...) }

// signedWith returns a kubelet's request after changes, signed again over a digest of that kind.
func signedWith(hash crypto.Hash, changes ...change) []byte {
	var request struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	must(asn1.Unmarshal(der(nodeRequest()), &request))
	var said content
	must(asn1.Unmarshal(request.TBS.FullBytes, &said))
	both(changes...)(&said)
	request.TBS = raw(said)
	if hash == crypto.SHA1 {
		request.Algorithm.Algorithm = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 1}
	}
	digest := hash.New()
	digest.Write(request.TBS.FullBytes)
	signature := must(ecdsa.SignASN1(rand.Reader, leafKey(), digest.Sum(nil)))
	request.Signature = asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}
	return must(asn1.Marshal(request))
}

// both makes all changes.
func both(changes ...change) change {
	return func(said *content) {
		for _, each := range changes {
			each(said)
		}
	}
}

func raw(value any, params ...string) asn1.RawValue {
	return asn1.RawValue{FullBytes: must(asn1.MarshalWithParams(value, strings.Join(params, ",")))}
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// object returns a bootstrapping kubelet's request with edits.
func object(edits ...edit) *request {
	obj := &request{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "uid-1", CreationTimestamp: metav1.NewTime(now)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    block("CERTIFICATE REQUEST", der(nodeRequest())),
			SignerName: "kubernetes.io/kube-apiserver-client-kubelet",
			Usages:     []usage{"digital signature", "client auth"},
			Username:   "system:bootstrap:abcdef",
			UID:        "user-uid",
			Groups:     []string{"system:bootstrappers", "system:authenticated"},
			Extra:      map[string]certificatesv1.ExtraValue{"key": {"a", "b"}},
		},
	}
	for _, each := range edits {
		each(obj)
	}
	return obj
}

func payload(data []byte) edit     { return func(obj *request) { obj.Spec.Request = data } }
func withRequest(der []byte) edit  { return payload(block("CERTIFICATE REQUEST", der)) }
func certificate(data []byte) edit { return func(obj *request) { obj.Status.Certificate = data } }

func parse(edits ...edit) *csr.Request { return must(csr.Parse(object(edits...))) }

// conditions adds conditions from words of the form KIND, KIND=STATUS and KIND=STATUS@DURATION. The status is True unless it is
// there, and the time is the duration after now. "KIND@" has no time.
func conditions(text string) edit {
	return func(obj *request) {
		for word := range strings.FieldsSeq(text) {
			word, at, timed := strings.Cut(word, "@")
			kind, status, found := strings.Cut(word, "=")
			added := certificatesv1.CertificateSigningRequestCondition{
				Type: certificatesv1.RequestConditionType(kind), Status: corev1.ConditionStatus(status),
			}
			if !found {
				added.Status = "True"
			}
			if !timed {
				at = "0"
			}
			if at != "" {
				added.LastUpdateTime = metav1.NewTime(now.Add(must(time.ParseDuration(at))))
			}
			obj.Status.Conditions = append(obj.Status.Conditions, added)
		}
	}
}

// certificateUntil returns a certificate in PEM that expires at end.
func certificateUntil(end time.Time) []byte {
	return certificateOf(&x509.Certificate{NotBefore: end.Add(-time.Hour), NotAfter: end})
}

// certificateOf returns a self-signed certificate in PEM.
func certificateOf(template *x509.Certificate) []byte {
	template.SerialNumber = big.NewInt(1)
	return block("CERTIFICATE", must(x509.CreateCertificate(rand.Reader, template, template, leafKey().Public(), leafKey())))
}

// TestParse compares the whole request. Nothing of it is dropped.
func TestParse(t *testing.T) {
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
		Usages: asked, UnknownUsages: []usage{"nonsense"},
		Cert: ca.Request{
			PublicKey: leafKey().Public(), Subject: subject, DNSNames: []string{"a.example.com"}, EmailAddresses: []string{"a@example.com"},
			IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1).To4()}, URIs: []*url.URL{uri}, Lifetime: time.Hour,
			KeyUsage: x509.KeyUsageKeyEncipherment, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		},
	}
	expect.Equal(t, "request", got, want, cmpopts.IgnoreUnexported(csr.Request{}))
	sum := sha256.Sum256(must(x509.MarshalPKIXPublicKey(leafKey().Public())))
	expect.Equal(t, "key fingerprint", got.KeyFingerprint(), hex.EncodeToString(sum[:]))
}

// TestParseLifetime checks the requested lifetime. Without one it is zero.
func TestParseLifetime(t *testing.T) {
	for seconds, want := range map[int32]time.Duration{600: 10 * time.Minute, 0: 1, -1: -time.Second, 1e9: 1e9 * time.Second} {
		expect.Equal(t, fmt.Sprint(seconds, " seconds"), parse(func(obj *request) { obj.Spec.ExpirationSeconds = &seconds }).Cert.Lifetime, want)
	}
	expect.Equal(t, "no wish", parse().Cert.Lifetime, 0)
}

// TestMalformed checks why spec.request can't be read. FuzzPayload compares which payloads can be read.
func TestMalformed(t *testing.T) {
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
		expect.Equal(t, "refusal", refusal(csr.Limits{}, payload(data)), "Malformed: "+want)
	}
}

// TestNodeOf checks the node in the subject of a request and of a certificate. The record of a certificate holds no name that is
// too long for a Node.
func TestNodeOf(t *testing.T) {
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
	expect.Equal(t, "above the limit", (csr.Limits{RequestBytes: 100}).NodeOf(object()), "")
}

// TestNodeAndNames checks the node, the DNS names and the addresses of a parsed request. A request that Parse refuses names no
// node.
func TestNodeAndNames(t *testing.T) {
	dns, other, ip := generalName(2, false, []byte("a.example.com")), generalName(2, false, []byte("b")), generalName(7, false, []byte{10, 0, 0, 1})
	san := func(names ...asn1.RawValue) pkix.Extension {
		return pkix.Extension{Id: oidSAN, Value: must(asn1.Marshal(names))}
	}
	unknown := pkix.Extension{Id: oidBasicConstraints, Value: []byte{0x30, 0}}
	const none = " [] []"
	for name, test := range map[string]struct {
		request edit
		want    string
		refused bool // by Parse
	}{
		"a kubelet's client certificate":  {withRequest(derOf()), "a [] []", false},
		"no node":                         {withRequest(derOf(subject(attr(oidCommonName, "alice")))), none, false},
		"an empty subject":                {withRequest(derOf(subject())), none, false},
		"two common names":                {withRequest(derOf(node(attr(oidCommonName, "system:node:b")))), "b [] []", false},
		"names and addresses":             {withRequest(derOf(names(dns, ip, other))), "a [a.example.com b] [10.0.0.1]", false},
		"IPv6":                            {withRequest(derOf(names(generalName(7, false, net.ParseIP("fd00::1"))))), "a [] [fd00::1]", false},
		"other kinds of names":            {withRequest(derOf(names(generalName(1, false, []byte("a@b")), generalName(2, true, nil), other))), "a [b] []", false},
		"a name with another class":       {withRequest(derOf(names(raw("c", "ia5"), other))), "a [b] []", false},
		"other extensions before":         {withRequest(derOf(extensions(unknown, san(other)))), "a [b] []", false},
		"names in a second list":          {withRequest(derOf(asking(oidExtensionRequest, raw([]asn1.RawValue{raw([]pkix.Extension{unknown}), raw([]pkix.Extension{san(dns)})}, "set")))), "a [] []", false},
		"names in a second attribute":     {withRequest(derOf(extensions(unknown), names(dns))), "a [a.example.com] []", false},
		"another attribute":               {withRequest(derOf(asking(oidChallenge, raw([]asn1.RawValue{raw([]pkix.Extension{san(dns)})}, "set")))), "a [] []", false},
		"extensions in no set":            {withRequest(derOf(asking(oidExtensionRequest, raw([]asn1.RawValue{raw([]pkix.Extension{san(dns)})})))), "a [] []", false},
		"bytes after the names":           {withRequest(derOf(extensions(pkix.Extension{Id: oidSAN, Value: append(must(asn1.Marshal([]asn1.RawValue{other})), 5, 0)}))), "a [b] []", false},
		"names that cannot be read":       {withRequest(derOf(extensions(pkix.Extension{Id: oidSAN, Value: []byte{5, 0}}))), none, true},
		"a key that is not permitted":     {withRequest(derOf(rsaKey(2048, 1))), none, true},
		"more names than permitted":       {withRequest(derOf(dnsNames(1001))), none, true},
		"a request larger than permitted": {payload(make([]byte, 200<<10)), none, true},
		"no PEM":                          {payload([]byte("hello")), none, true},
		"a DER that is cut off":           {withRequest(derOf()[:50]), none, true},
		"trimmed":                         {func(obj *request) { conditions("Denied@1m")(obj); *obj = *transformed(csr.Trim{}, obj) }, none, true},
	} {
		obj := object(test.request)
		req, err := csr.Parse(obj)
		got := csr.Limits{}.NodeOf(obj) + none
		if err == nil {
			got = fmt.Sprint(req.NodeName(), " ", req.Cert.DNSNames, " ", req.Cert.IPAddresses)
		}
		if got != test.want || (err != nil) != test.refused {
			t.Errorf("%s: %s, error %v", name, got, err)
		}
	}
}

// BenchmarkParse parses requests of a kubelet, for which each event pays.
func BenchmarkParse(b *testing.B) {
	serving := nodeRequest()
	serving.DNSNames, serving.IPAddresses = []string{"a", "a.example.com"}, []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")}
	for name, obj := range map[string]*request{"client": object(), "serving": object(withRequest(der(serving)))} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, _ = csr.Parse(obj)
			}
		})
	}
}

// TestProof checks whether the signature of a request proves possession of its key. A signature with SHA-1 counts too.
func TestProof(t *testing.T) {
	renamed := bytes.Replace(der(nodeRequest()), []byte("system:node:a"), []byte("system:node:b"), 1)
	expect.Error(t, "changed after it was signed", parse(withRequest(renamed)).CheckSignature(),
		"the signature in spec.request does not match its public key: x509: ECDSA verification failure")
	expect.Error(t, "SHA-1", parse(withRequest(signedWith(crypto.SHA1))).CheckSignature(), "")
}

// TestPanicOfTheParserIsAnError checks that the error is not final. Informers call the parser in goroutines that do not
// recover, where a panic would end the process.
func TestPanicOfTheParserIsAnError(t *testing.T) {
	defer csr.ReplaceParser(func([]byte) (*x509.CertificateRequest, error) { panic("index out of range") })()
	req, err := csr.Parse(object())
	var refused *csr.Refused
	if req != nil || fmt.Sprint(err) != "read spec.request of csr-1: panic: index out of range" || errors.As(err, &refused) {
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
	tooLarge := func(message, setting string) string {
		return "RequestTooLarge: " + message + " (requestLimits." + setting + ")"
	}
	badKey := func(message string) string {
		return "KeyNotPermitted: " + message + "; " + ca.PermittedKeys()
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
	slhDSA := key(asn1.RawValue{}, make([]byte, 32), 2, 16, 840, 1, 101, 3, 4, 3, 20)
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
		"SLH-DSA":          {usual, slhDSA, badKey("the public key can't be read: x509: unknown public key algorithm")},
	} {
		expect.Equal(t, name, refusal(test.limits, withRequest(derOf(test.change))), test.want)
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
		expect.Equal(t, fmt.Sprintf("%+v", test.limits), refusal(test.limits, withRequest(test.data)), test.want)
	}
}

// refusal returns the reason and message of the final error about a request, or "" if it is read.
func refusal(limits csr.Limits, data edit) string {
	req, err := limits.Parse(object(data))
	var refused *csr.Refused
	switch {
	case errors.As(err, &refused):
		return refused.Reason + ": " + err.Error()
	case err != nil || req == nil:
		return fmt.Sprintf("not final: %v", err)
	}
	return ""
}

// TestParserRunsOnlyWithinTheLimits checks that crypto/x509 never gets a refused request, so its behaviour for oversize
// input does not matter.
func TestParserRunsOnlyWithinTheLimits(t *testing.T) {
	ran := 0
	defer csr.ReplaceParser(func(der []byte) (*x509.CertificateRequest, error) {
		ran++
		return x509.ParseCertificateRequest(der)
	})()
	for _, change := range []change{subject(units(257, "u")...), dnsNames(1001), rsaKey(8193, 65537)} {
		if got := refusal(csr.Limits{}, withRequest(derOf(change))); got == "" || ran > 0 {
			t.Errorf("the parser ran %d times, %q", ran, got)
		}
	}
	expect.Equal(t, "a request within the limits", refusal(csr.Limits{}, withRequest(derOf())), "")
	expect.Equal(t, "runs of the parser", ran, 1)
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
		expect.Equal(t, name+": dropped", strings.Join(req.Dropped, ", "), test.want)
		expect.Error(t, name, req.CheckSignature(), "")
	}
}

// FuzzParse checks that no payload makes the parser panic. It also checks that a payload that parses and passes the
// profile can be issued. The certificate then has all requested content except that in Dropped.
func FuzzParse(f *testing.F) {
	serving := nodeRequest()
	serving.DNSNames, serving.IPAddresses = []string{"a"}, []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")}
	serving.EmailAddresses, serving.URIs = []string{"a@example.com"}, []*url.URL{{Scheme: "urn", Opaque: "a"}}
	f.Add(der(nodeRequest()))
	f.Add(der(serving))
	f.Add(der(&x509.CertificateRequest{}))
	for _, kind := range mldsaKinds {
		pqc, _ := pem.Decode(mldsaRequest(f, kind))
		f.Add(pqc.Bytes)
	}
	f.Add(derOf(node(attr(oidUserID, "a"), attr(oidCommonName, "b"))))
	f.Add(derOf(node(attr(oidOrganization, asn1.RawValue{Tag: asn1.TagT61String, Bytes: []byte{0xfc}}))))
	f.Add(derOf(extensions(pkix.Extension{Id: oidBasicConstraints, Value: []byte{0x30, 3, 1, 1, 0xff}})))
	f.Add(derOf(names(generalName(8, false, []byte{42}), generalName(6, false, []byte("HTTP://A.example.com/%41?#")))))
	f.Add(derOf(asking(oidChallenge, raw([]string{"secret"}, "set"))))
	made, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, now)
	authority, profile := must(made, err), must(ca.NewProfile(ca.ProfileConfig{}))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = csr.Parse(object(payload(data)))
		req, err := csr.Parse(object(withRequest(data)))
		if err != nil {
			return
		}
		for _, shape := range []func(*csr.Request) error{csr.KubeletClientShape, csr.KubeletServingShape, csr.APIServerClientShape} {
			_ = shape(req)
		}
		_ = req.CheckSignature()
		if profile.Check(req.Cert) != nil {
			return
		}
		issued, err := authority.Issue(profile, req.Cert, now)
		if err != nil {
			t.Fatalf("what was parsed cannot be issued: %v", err)
		}
		first, _ := pem.Decode(issued.PEM)
		cert, err := x509.ParseCertificate(first.Bytes)
		if err != nil {
			t.Fatalf("what was issued does not parse: %v", err)
		}
		checkNothingIsLost(t, data, req, cert)
	})
}

func checkNothingIsLost(t *testing.T, data []byte, req *csr.Request, cert *x509.Certificate) {
	t.Helper()
	payload := must(x509.ParseCertificateRequest(data))
	if !payload.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(cert.PublicKey) {
		t.Error("another public key")
	}
	told := func(prefix string) bool {
		return slices.ContainsFunc(req.Dropped, func(entry string) bool { return strings.HasPrefix(entry, prefix) })
	}
	for _, asked := range payload.Subject.Names {
		kept := slices.ContainsFunc(cert.Subject.Names, func(have pkix.AttributeTypeAndValue) bool {
			return have.Type.Equal(asked.Type) && reflect.DeepEqual(have.Value, asked.Value)
		})
		if !kept && asked.Value != "" && !told("subject attribute "+asked.Type.String()) {
			t.Errorf("subject attribute %s=%v is lost and not in %q", asked.Type, asked.Value, req.Dropped)
		}
	}
	if len(cert.Subject.Names) > len(payload.Subject.Names) {
		t.Errorf("subject %s, asked for %s", cert.Subject, payload.Subject)
	}
	asked, carried := 0, len(cert.DNSNames)+len(cert.EmailAddresses)+len(cert.IPAddresses)+len(cert.URIs)
	for _, extension := range payload.Extensions {
		if !extension.Id.Equal(oidSAN) {
			if !told("extension " + extension.Id.String()) {
				t.Errorf("extension %s is lost and not in %q", extension.Id, req.Dropped)
			}
			continue
		}
		var names []asn1.RawValue
		_, _ = asn1.Unmarshal(extension.Value, &names)
		asked = len(names)
	}
	if carried > asked || carried < asked && !told("subjectAltName ") {
		t.Errorf("%d of %d subjectAltNames are carried, dropped %q", carried, asked, req.Dropped)
	}
	got := fmt.Sprint(cert.DNSNames, cert.EmailAddresses, cert.IPAddresses, cert.URIs)
	expect.Equal(t, "names", got, fmt.Sprint(payload.DNSNames, payload.EmailAddresses, payload.IPAddresses, payload.URIs))
}

// FuzzPayload checks that Parse agrees with the reader of kube-controller-manager, which is encoding/pem and
// crypto/x509. Parse accepts no payload that this reader refuses. It refuses any other payload only for its size or its
// key. What it accepts is within the limits.
func FuzzPayload(f *testing.F) {
	good := block("CERTIFICATE REQUEST", der(nodeRequest()))
	names := block("CERTIFICATE REQUEST", der(&x509.CertificateRequest{
		DNSNames: []string{"a", "b.example.com"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}, EmailAddresses: []string{"a@b"},
	}))
	for _, seed := range [][]byte{
		good, names, nil, []byte("no PEM"), block("NEW CERTIFICATE REQUEST", der(nodeRequest())), block("CERTIFICATE REQUEST", []byte("x")),
		append([]byte("Subject: a\r\n\r\n"), good...), append(slices.Clone(good), names...), append(slices.Clone(good), "garbage"...),
		append(slices.Clone(good), block("CERTIFICATE REQUEST", []byte("broken"))...), append(slices.Clone(good), block("PRIVATE KEY", nil)...),
		[]byte(strings.TrimSpace(string(good))),
		[]byte(strings.ReplaceAll(string(good), "\n", "\r\n")), []byte(strings.Replace(string(good), "\n", "\nComment: a\n\n", 1)),
		append(block("OTHER", []byte{1}), good...), block("CERTIFICATE REQUEST", append(der(nodeRequest()), 0)),
		mldsaRequest(f, "ML-DSA-44"), mldsaRequest(f, "ML-DSA-87"),
	} {
		f.Add(seed)
	}
	small := csr.Limits{RequestBytes: 4096, DERBytes: 2048, SubjectAttributes: 3, Names: 4, Extensions: 3}
	large := csr.Limits{RequestBytes: 1 << 30, DERBytes: 1 << 30, SubjectAttributes: 1 << 30, Names: 1 << 30, Extensions: 1 << 30}
	f.Fuzz(func(t *testing.T, data []byte) {
		obj := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Request: data}}
		var want *x509.CertificateRequest
		if first, _ := pem.Decode(data); first != nil && first.Type == "CERTIFICATE REQUEST" {
			want, _ = x509.ParseCertificateRequest(first.Bytes)
		}
		req, err := large.Parse(obj)
		switch {
		case err == nil && want == nil:
			t.Fatal("accepted, but kube-controller-manager's reader refuses it")
		case err != nil && want != nil && ca.CheckKey(want.PublicKey) == nil:
			t.Fatalf("refused without a limit: %v", err)
		case err == nil && ca.CheckKey(want.PublicKey) != nil:
			t.Fatal("accepted with a key that is never permitted")
		}
		checkRefusal(t, err)
		bounded, err := small.Parse(obj)
		checkRefusal(t, err)
		if err == nil {
			checkWithin(t, small, data, want, bounded)
		}
		if err == nil && bounded.SubjectText() != req.SubjectText() {
			t.Errorf("the subject is %s, and with other limits %s", bounded.SubjectText(), req.SubjectText())
		}
	})
}

// checkRefusal checks that err is a verdict about the payload and not a fault, and that its message is bounded.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	refused := (*csr.Refused)(nil)
	if err == nil {
		return
	}
	if !errors.As(err, &refused) {
		t.Fatalf("a fault: %v", err)
	}
	if !slices.Contains([]string{"Malformed", "RequestTooLarge", "KeyNotPermitted"}, refused.Reason) || len(refused.Message) > 1024 {
		t.Errorf("reason %s, message of %d bytes", refused.Reason, len(refused.Message))
	}
}

func checkWithin(t *testing.T, limits csr.Limits, data []byte, payload *x509.CertificateRequest, req *csr.Request) {
	t.Helper()
	names := len(payload.DNSNames) + len(payload.EmailAddresses) + len(payload.IPAddresses) + len(payload.URIs)
	first, _ := pem.Decode(data)
	if len(data) > limits.RequestBytes || len(first.Bytes) > limits.DERBytes || names > limits.Names ||
		len(payload.Subject.Names) > limits.SubjectAttributes || len(payload.Extensions) > limits.Extensions-1 {
		t.Errorf("accepted over the limits: %d bytes, %d of DER, %d names, %d subject attributes, %d extensions",
			len(data), len(first.Bytes), names, len(payload.Subject.Names), len(payload.Extensions))
	}
	if req.Cert.Subject.CommonName != payload.Subject.CommonName || !slices.Equal(req.Cert.Subject.Organization, payload.Subject.Organization) ||
		!slices.Equal(req.Cert.DNSNames, payload.DNSNames) || len(req.Cert.Subject.ExtraNames) > 0 {
		t.Errorf("judged as %+v, but the payload is %+v", req.Cert, payload.Subject)
	}
}
