package csr_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func TestParse(t *testing.T) {
	t.Parallel()
	uri := must(url.Parse("spiffe://example.com/a"))
	seconds := int32(3600)
	got := parse(t, func(obj *certificatesv1.CertificateSigningRequest) {
		obj.Spec.Request = block("CERTIFICATE REQUEST", der(t, &x509.CertificateRequest{
			Subject: pkix.Name{
				Country: []string{"DE"}, Province: []string{"BE"}, Locality: []string{"Berlin"}, StreetAddress: []string{"Weg 1"}, PostalCode: []string{"1"},
				Organization: []string{"b", "a"}, OrganizationalUnit: []string{"u"}, CommonName: "name", SerialNumber: "7",
			},
			DNSNames: []string{"a.example.com"}, EmailAddresses: []string{"a@example.com"},
			IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}, URIs: []*url.URL{uri},
		}))
		obj.Spec.Usages = []certificatesv1.KeyUsage{"server auth", "key encipherment", "nonsense", "client auth"}
		obj.Spec.ExpirationSeconds = &seconds
	})
	want := &csr.Request{
		Name: "csr-1", UID: "uid-1", SignerName: "kubernetes.io/kube-apiserver-client-kubelet", Created: now,
		Requester: csr.Requester{
			Username: "system:bootstrap:abcdef", UID: "user-uid", Groups: []string{"system:bootstrappers", "system:authenticated"},
			Extra: map[string]certificatesv1.ExtraValue{"key": {"a", "b"}},
		},
		Usages:        []certificatesv1.KeyUsage{"server auth", "key encipherment", "nonsense", "client auth"},
		UnknownUsages: []certificatesv1.KeyUsage{"nonsense"},
		Cert: ca.Request{
			PublicKey: leafKey().Public(),
			Subject: pkix.Name{
				Country: []string{"DE"}, Province: []string{"BE"}, Locality: []string{"Berlin"}, StreetAddress: []string{"Weg 1"}, PostalCode: []string{"1"},
				Organization: []string{"a", "b"}, OrganizationalUnit: []string{"u"}, CommonName: "name", SerialNumber: "7",
			},
			DNSNames: []string{"a.example.com"}, EmailAddresses: []string{"a@example.com"},
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

func TestParseLifetime(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int32]time.Duration{600: 10 * time.Minute, 1: time.Second, 0: 1, -1: -time.Second, 1e9: 1e9 * time.Second} {
		got := parse(t, func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.ExpirationSeconds = &seconds })
		if got.Cert.Lifetime != want {
			t.Errorf("%d seconds became %s", seconds, got.Cert.Lifetime)
		}
	}
	if got := parse(t).Cert.Lifetime; got != 0 {
		t.Errorf("no wish became %s", got)
	}
}

func TestParsePEM(t *testing.T) {
	t.Parallel()
	good := block("CERTIFICATE REQUEST", der(t, nodeRequest()))
	other := nodeRequest()
	other.Subject.CommonName = "system:node:b"
	second := block("CERTIFICATE REQUEST", der(t, other))
	badSAN := nodeRequest()
	badSAN.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: []byte{4, 1, 0}}}
	const noPEM = "spec.request is not a PEM block of type CERTIFICATE REQUEST"
	const noRequest = "spec.request is not a valid PKCS#10 request: "

	for name, test := range map[string]struct {
		data []byte
		err  string
	}{
		"valid":                  {data: good},
		"text before":            {data: append([]byte("Certificate Request:\n  Data:\n"), good...)},
		"text after":             {data: append(bytes.Clone(good), "garbage"...)},
		"a second request after": {data: append(bytes.Clone(good), second...)},
		"a broken request after": {data: append(bytes.Clone(good), block("CERTIFICATE REQUEST", []byte("broken"))...)},
		"another kind after":     {data: append(bytes.Clone(good), block("PRIVATE KEY", []byte("secret"))...)},
		"CRLF line ends":         {data: bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n"))},
		"no newline at the end":  {data: bytes.TrimSpace(good)},
		"headers":                {data: bytes.Replace(good, []byte("REQUEST-----\n"), []byte("REQUEST-----\nComment: none\n\n"), 1)},

		"nothing":              {err: noPEM},
		"no PEM":               {data: []byte("hello"), err: noPEM},
		"DER":                  {data: der(t, nodeRequest()), err: noPEM},
		"a certificate":        {data: block("CERTIFICATE", der(t, nodeRequest())), err: noPEM},
		"OpenSSL's old type":   {data: block("NEW CERTIFICATE REQUEST", der(t, nodeRequest())), err: noPEM},
		"another kind before":  {data: append(block("PRIVATE KEY", []byte("secret")), good...), err: noPEM},
		"cut in the middle":    {data: good[:len(good)/2], err: noPEM},
		"empty block":          {data: block("CERTIFICATE REQUEST", nil), err: noRequest + "asn1: syntax error: sequence truncated"},
		"no DER":               {data: block("CERTIFICATE REQUEST", []byte{0x30, 0x80}), err: noRequest + "asn1: syntax error: indefinite length found (not DER)"},
		"cut DER":              {data: block("CERTIFICATE REQUEST", der(t, nodeRequest())[:40]), err: noRequest + "asn1: syntax error: data truncated"},
		"bytes after the DER":  {data: block("CERTIFICATE REQUEST", append(der(t, nodeRequest()), 0)), err: noRequest + "asn1: syntax error: trailing data"},
		"broken SAN extension": {data: block("CERTIFICATE REQUEST", der(t, badSAN)), err: noRequest + "x509: invalid subject alternative names"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := csr.Parse(object(t, func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.Request = test.data }))
			if diff := cmp.Diff(test.err, errorText(err)); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
			if err == nil && req.Cert.Subject.CommonName != "system:node:a" {
				t.Errorf("read %q, want the first block", req.Cert.Subject.CommonName)
			}
		})
	}
}

// A request of the maximum size that fits into an object is parsed in far less time than a worker has.
func TestParseHugeRequest(t *testing.T) {
	t.Parallel()
	template := nodeRequest()
	for i := range 10_000 {
		template.DNSNames = append(template.DNSNames, fmt.Sprintf("host-%d.example.com", i))
	}
	obj := object(t, withRequest(der(t, template)))
	began := time.Now()
	req, err := csr.Limits{RequestBytes: 1 << 20, DERBytes: 1 << 20, Names: 10_000}.Parse(obj)
	if took := time.Since(began); err != nil || took > 20*time.Second || len(req.Cert.DNSNames) != 10_000 {
		t.Errorf("it took %s: %v", took, err)
	}
	lines := append(bytes.Repeat([]byte("-----BEGIN x-----\n"), 20_000), object(t).Spec.Request...)
	began = time.Now()
	_, _ = csr.Limits{RequestBytes: 1 << 20}.Parse(object(t, func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.Request = lines }))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("text that looks like PEM took %s", took)
	}
}

func TestKeyIn(t *testing.T) {
	t.Parallel()
	other := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	for want, key := range map[bool]any{true: leafKey().Public(), false: other.Public()} {
		if got := parse(t).KeyIn(&x509.Certificate{PublicKey: key}); got != want {
			t.Errorf("%t, want %t", got, want)
		}
	}
	if parse(t).KeyIn(&x509.Certificate{}) {
		t.Error("a key of an unknown kind is the request's")
	}
}

func TestCheckSignature(t *testing.T) {
	t.Parallel()
	good := der(t, nodeRequest())
	if err := parse(t, withRequest(good)).CheckSignature(); err != nil {
		t.Errorf("a good signature: %v", err)
	}
	renamed := bytes.Replace(good, []byte("system:node:a"), []byte("system:node:b"), 1)
	const want = "the signature in spec.request does not match its public key: x509: ECDSA verification failure"
	if err := parse(t, withRequest(renamed)).CheckSignature(); errorText(err) != want {
		t.Errorf("a request that was changed after it was signed: %v", err)
	}
}
