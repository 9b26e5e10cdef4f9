package csr_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	_ "crypto/sha1" // crypto.SHA1
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
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

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
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
