package signer

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

const clientSigner, servingSigner = certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeletServingSignerName

// outcome reconciles obj with a CA. It returns the certificate, or "Failed REASON" or "Untouched".
func outcome(t testing.TB, obj *request) (*x509.Certificate, string) {
	t.Helper()
	p := newParts(t, obj)
	p.load(t, 100*365*day)
	before := len(obj.Status.Conditions)
	if _, err := p.reconcile(t); err != nil {
		t.Fatal(err)
	}
	switch {
	case len(p.written) == 0 && len(taken(p.recorder)) == 0:
		return nil, "Untouched"
	case len(p.written) != 1:
		t.Fatalf("%d writes", len(p.written))
	case len(p.written[0].Status.Conditions) > before:
		last := p.written[0].Status.Conditions[before]
		return nil, string(last.Type) + " " + last.Reason
	}
	certs, err := ca.ParseCertificates(p.written[0].Status.Certificate)
	if err != nil || len(certs) != 1 {
		t.Fatalf("%d certificates, error %v", len(certs), err)
	}
	if cert := certs[0]; cert.IsCA || !cert.BasicConstraintsValid || cert.SignatureAlgorithm == x509.ECDSAWithSHA1 {
		t.Errorf("CA %t, basic constraints %t, signed with %s", cert.IsCA, cert.BasicConstraintsValid, cert.SignatureAlgorithm)
	}
	return certs[0], "Issued"
}

// TestInputs signs approved requests with bad or surprising content from practice. The numbers are those of the
// approver's TestInputs.
func TestInputs(t *testing.T) {
	t.Parallel()
	serving := func(obj *request) {
		obj.Spec.SignerName, obj.Spec.Usages = servingSigner, []certificatesv1.KeyUsage{"digital signature", "server auth"}
	}
	named := template(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a"} })
	uri := func(r *x509.CertificateRequest) {
		r.DNSNames, r.URIs = []string{"a"}, []*url.URL{{Scheme: "spiffe", Host: "a"}}
	}
	email := func(r *x509.CertificateRequest) { r.DNSNames, r.EmailAddresses = []string{"a"}, []string{"a@b"} }
	isCA := func(r *x509.CertificateRequest) {
		r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}, {Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}}
	}
	organization := func(all ...string) func(*request) {
		return template(t, func(r *x509.CertificateRequest) { r.Subject.Organization = all })
	}
	stripped := func(kind certificatesv1.RequestConditionType) func(*request) { return with(kind, "") }
	for name, test := range map[string]struct {
		change []func(*request)
		want   string
	}{
		"10 without key encipherment":           {[]func(*request){serving, named}, "Issued"},
		"10 with key encipherment":              {[]func(*request){serving, named, usages("key encipherment", "server auth", "digital signature")}, "Issued"},
		"11 server auth for a client":           {[]func(*request){signerName(clientSigner), usages("digital signature", "server auth")}, "Failed SignerValidationFailure"},
		"11 server auth for a kubelet's client": {[]func(*request){usages("digital signature", "server auth")}, "Failed SignerValidationFailure"},
		"11 client auth for serving":            {[]func(*request){serving, named, usages("digital signature", "client auth")}, "Failed SignerValidationFailure"},
		"12 CA:TRUE and an extension":           {[]func(*request){template(t, isCA)}, "Issued"},
		"12 a URI for a kubelet's client":       {[]func(*request){template(t, uri)}, "Failed SignerValidationFailure"},
		"12 a URI for serving":                  {[]func(*request){serving, template(t, uri)}, "Failed SignerValidationFailure"},
		"12 an e-mail address for serving":      {[]func(*request){serving, template(t, email)}, "Failed SignerValidationFailure"},
		"12 two names in one, for serving": {[]func(*request){serving, template(t, func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"::ffff:10.9.0.1%, DNS:kubernetes.default.svc"}
		})}, "Failed NameNotPermitted"},
		"12 a wildcard for a client": {[]func(*request){signerName(clientSigner), template(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"*.a"} })}, "Issued"},
		"12 percent signs elsewhere": {[]func(*request){signerName(clientSigner), template(t, func(r *x509.CertificateRequest) {
			r.Subject.CommonName, r.URIs = "100%", []*url.URL{{Scheme: "spiffe", Host: "a", Path: "/%"}}
		})}, "Issued"},
		"13 system:masters":                        {[]func(*request){organization("system:masters")}, "Failed SignerValidationFailure"},
		"13 system:nodes and another organization": {[]func(*request){organization("system:nodes", "system:masters")}, "Failed SignerValidationFailure"},
		"13 system:masters for a client":           {[]func(*request){signerName(clientSigner), organization("a", "system:masters")}, "Failed SubjectNotPermitted"},
		"13 no common name":                        {[]func(*request){template(t, func(r *x509.CertificateRequest) { r.Subject.CommonName = "" })}, "Failed SignerValidationFailure"},
		"15 an unconfigured signer":                {[]func(*request){signerName("beta.eks.amazonaws.com/app-serving"), named}, "Untouched"},
		"15 a signer name with one node":           {[]func(*request){signerName("interlink.example.com/node-a"), named}, "Untouched"},
		"15 legacy-unknown, approved":              {[]func(*request){signerName("kubernetes.io/legacy-unknown")}, "Untouched"},
		"20 Approved and Denied":                   {[]func(*request){with("Denied", "True")}, "Untouched"},
		"20 Approved and Denied, without a status": {[]func(*request){stripped("Denied")}, "Untouched"},
		"20 Approved and Denied, status False":     {[]func(*request){with("Denied", "False")}, "Untouched"},
		"20 Approved and Failed":                   {[]func(*request){with("Failed", "True")}, "Untouched"},
		"20 Approved and Failed, without a status": {[]func(*request){stripped("Failed")}, "Untouched"},
		"20 unknown conditions only":               {[]func(*request){func(obj *request) { obj.Status.Conditions[0].Type = "Vetted" }}, "Untouched"},
		"23 nothing":                               {[]func(*request){func(obj *request) { obj.Spec.Request = nil }}, "Failed Malformed"},
		"23 another block after":                   {[]func(*request){func(obj *request) { obj.Spec.Request = append(obj.Spec.Request, obj.Spec.Request...) }}, "Issued"},
		"24 a certificate that cannot be parsed":   {[]func(*request){func(obj *request) { obj.Status.Certificate = []byte("nonsense") }}, "Untouched"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert, got := outcome(t, object(t, test.change...))
			if got != test.want {
				t.Fatalf("%s, want %s", got, test.want)
			}
			if cert != nil && slices.ContainsFunc(cert.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(asn1.ObjectIdentifier{1, 2, 3}) }) {
				t.Error("it has an extension that was asked for")
			}
		})
	}
}

// Input 16: the profile decides about each kind of key, and the decision never takes long.
func TestInput16Keys(t *testing.T) {
	t.Parallel()
	huge, err := os.ReadFile("testdata/rsa-16384.pem")
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	null := asn1.RawValue{Tag: asn1.TagNull}
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"16 RSA-1024":                    {payload(t, nodeRequest(), weakKey()), "Failed KeyTooWeak"},
		"16 RSA-2048":                    {payload(t, nodeRequest(), must(rsa.GenerateKey(rand.Reader, 2048))), "Issued"},
		"16 RSA-16384":                   {huge, "Failed KeyNotPermitted"},
		"16 RSA-524288":                  {ofKey(t, asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, null, raw(t, struct{ N, E *big.Int }{new(big.Int).SetBit(big.NewInt(1), 500_000, 1), big.NewInt(65537)}).FullBytes), "Failed KeyNotPermitted"},
		"16 P-224":                       {payload(t, nodeRequest(), must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))), "Failed KeyNotPermitted"},
		"16 Ed25519":                     {payload(t, nodeRequest(), edKey), "Issued"},
		"16 P-256":                       {payload(t, nodeRequest(), leafKey()), "Issued"},
		"16 P-521":                       {payload(t, nodeRequest(), must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))), "Issued"},
		"16 P-256, signed with SHA-1":    {signedWithSHA1(t), "Issued"}, // the self-signature only proves possession of the key
		"16 ML-DSA-65":                   {ofKey(t, asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, 18}, asn1.RawValue{}, make([]byte, 1952)), "Failed KeyNotPermitted"},
		"16 DSA":                         {ofKey(t, asn1.ObjectIdentifier{1, 2, 840, 10040, 4, 1}, raw(t, []*big.Int{big.NewInt(23), big.NewInt(11), big.NewInt(4)}), raw(t, big.NewInt(3)).FullBytes), "Failed KeyNotPermitted"},
		"16 RSA with an even exponent":   {ofKey(t, asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, null, raw(t, struct{ N, E *big.Int }{new(big.Int).Lsh(big.NewInt(1), 2047), big.NewInt(2)}).FullBytes), "Failed KeyNotPermitted"},
		"16 RSA without its private key": {ofKey(t, asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, null, raw(t, struct{ N, E *big.Int }{new(big.Int).SetBit(big.NewInt(1), 8191, 1), big.NewInt(65537)}).FullBytes), "Failed Malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			if _, got := outcome(t, object(t, func(obj *request) { obj.Spec.Request = test.data })); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// Input 17: a requested lifetime below ten minutes is raised, and a lifetime above the signer's maximum is cut.
func TestInput17Lifetimes(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	seconds := func(n int32) *int32 { return &n }
	for name, test := range map[string]struct {
		wish *int32
		want time.Duration // the whole validity; below eight hours it includes the backdating
	}{
		"17 none":                         {nil, year},
		"17 600":                          {seconds(600), 15 * time.Minute},
		"17 599, as only etcd can hold":   {seconds(599), 15 * time.Minute},
		"17 0, as only etcd can hold":     {seconds(0), 15 * time.Minute},
		"17 less than 0":                  {seconds(-1 << 31), 15 * time.Minute},
		"17 a day":                        {seconds(86400), 24 * time.Hour},
		"17 1e9":                          {seconds(1e9), year},
		"17 the maximum":                  {seconds(1<<31 - 1), year},
		"17 a second more than permitted": {seconds(int32(year/time.Second) + 1), year},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert, got := outcome(t, object(t, func(obj *request) { obj.Spec.ExpirationSeconds = test.wish }))
			if cert == nil {
				t.Fatal(got)
			}
			if lives := cert.NotAfter.Sub(cert.NotBefore); lives != test.want {
				t.Errorf("it lives for %s, want %s", lives, test.want)
			}
		})
	}
}

func raw(t testing.TB, value any) asn1.RawValue {
	t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return asn1.RawValue{FullBytes: der}
}

// said holds the content of a PKCS#10 request (RFC 2986 section 4.1).
type said struct {
	Version    int
	Subject    asn1.RawValue
	PublicKey  asn1.RawValue
	Attributes []asn1.RawValue `asn1:"tag:0"`
}

type algorithm struct {
	ID         asn1.ObjectIdentifier
	Parameters asn1.RawValue `asn1:"optional"`
}

func tbs(t testing.TB, publicKey asn1.RawValue) []byte {
	t.Helper()
	return raw(t, said{Subject: raw(t, nodeRequest().Subject.ToRDNSequence()), PublicKey: publicKey}).FullBytes
}

func encode(t testing.TB, tbs []byte, signedWith asn1.ObjectIdentifier, signature []byte) []byte {
	t.Helper()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: raw(t, struct {
		TBS       asn1.RawValue
		Algorithm algorithm
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: tbs}, algorithm{ID: signedWith}, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}}).FullBytes})
}

// ofKey returns a request for a key without its private half, so the signature is invalid.
func ofKey(t testing.TB, kind asn1.ObjectIdentifier, parameters asn1.RawValue, key []byte) []byte {
	t.Helper()
	public := raw(t, struct {
		Algorithm algorithm
		Key       asn1.BitString
	}{algorithm{kind, parameters}, asn1.BitString{Bytes: key, BitLength: 8 * len(key)}})
	return encode(t, tbs(t, public), asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, make([]byte, 2048))
}

func signedWithSHA1(t testing.TB) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(leafKey().Public())
	if err != nil {
		t.Fatal(err)
	}
	content := tbs(t, asn1.RawValue{FullBytes: der})
	sum := sha1.Sum(content)
	signature, err := ecdsa.SignASN1(rand.Reader, leafKey(), sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return encode(t, content, asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 1}, signature)
}
