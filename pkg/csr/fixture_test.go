package csr_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
func der(t testing.TB, template *x509.CertificateRequest) []byte {
	t.Helper()
	data, err := x509.CreateCertificateRequest(rand.Reader, template, leafKey())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// derOf returns a kubelet's request after change, signed again.
func derOf(t testing.TB, change func(*content)) []byte {
	t.Helper()
	var request struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	must(asn1.Unmarshal(der(t, nodeRequest()), &request))
	var said content
	must(asn1.Unmarshal(request.TBS.FullBytes, &said))
	change(&said)
	request.TBS = asn1.RawValue{FullBytes: must(asn1.Marshal(said))}
	sum := sha256.Sum256(request.TBS.FullBytes)
	signature := must(ecdsa.SignASN1(rand.Reader, leafKey(), sum[:]))
	request.Signature = asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}
	return must(asn1.Marshal(request))
}

func raw(value any, params ...string) asn1.RawValue {
	if len(params) > 0 {
		return asn1.RawValue{FullBytes: must(asn1.MarshalWithParams(value, params[0]))}
	}
	return asn1.RawValue{FullBytes: must(asn1.Marshal(value))}
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// blockOf returns the content of the first PEM block.
func blockOf(data []byte) []byte {
	first, _ := pem.Decode(data)
	return first.Bytes
}

// object returns a bootstrapping kubelet's request, changed by modify.
func object(t testing.TB, modify ...func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	obj := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "uid-1", CreationTimestamp: metav1.NewTime(now)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    block("CERTIFICATE REQUEST", der(t, nodeRequest())),
			SignerName: "kubernetes.io/kube-apiserver-client-kubelet",
			Usages:     []certificatesv1.KeyUsage{"digital signature", "client auth"},
			Username:   "system:bootstrap:abcdef",
			UID:        "user-uid",
			Groups:     []string{"system:bootstrappers", "system:authenticated"},
			Extra:      map[string]certificatesv1.ExtraValue{"key": {"a", "b"}},
		},
	}
	for _, change := range modify {
		change(obj)
	}
	return obj
}

func withRequest(der []byte) func(*certificatesv1.CertificateSigningRequest) {
	return func(obj *certificatesv1.CertificateSigningRequest) {
		obj.Spec.Request = block("CERTIFICATE REQUEST", der)
	}
}

func parse(t testing.TB, modify ...func(*certificatesv1.CertificateSigningRequest)) *csr.Request {
	t.Helper()
	req, err := csr.Parse(object(t, modify...))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
