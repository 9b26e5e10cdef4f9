package loop

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net/url"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestBadInput sends inputs that were seen in practice. Where the approver does not decide, another user approves
// them. Then it sends a good request, which must not be affected.
func TestBadInput(t *testing.T) {
	kit.Parallel(t)
	kit.StartLoop(t, csrenv.Options{})
	node := pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}
	const client, kubelet, serving = certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName
	clientAuth := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	serverAuth := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	for name, test := range map[string]struct {
		signer  string
		usages  []certificatesv1.KeyUsage
		request x509.CertificateRequest
		reason  string // of the Failed condition
		message string
	}{
		"server usage for a client": {client, serverAuth, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}},
			"SignerValidationFailure", "invalid usage for client certificate: server auth"},
		"client usage for a server": {serving, clientAuth, x509.CertificateRequest{Subject: node, DNSNames: []string{"a"}},
			"SignerValidationFailure", "usages did not match [digital signature key encipherment server auth]"},
		"serving without names": {serving, serverAuth, x509.CertificateRequest{Subject: node},
			"SignerValidationFailure", "DNS or IP subjectAltName is required"},
		"one organization too many": {kubelet, clientAuth, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes", "system:masters"}}},
			"SignerValidationFailure", "subject organization is not system:nodes"},
		"a URI on a node": {kubelet, clientAuth, x509.CertificateRequest{Subject: node, URIs: []*url.URL{{Scheme: "spiffe", Host: "a"}}},
			"SignerValidationFailure", "URI subjectAltNames are not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "", func(obj *kit.Request) {
				obj.Spec.SignerName, obj.Spec.Usages, obj.Spec.Request = test.signer, test.usages, kit.Payload(t, test.request)
			}))
			kit.Approve(t, obj)
			failed := kit.Reaches(t, obj, csr.Failed).Status.Conditions[1]
			if failed.Reason != test.reason || failed.Message != test.message {
				t.Errorf("Failed with %s: %s, want %s: %s", failed.Reason, failed.Message, test.reason, test.message)
			}
			kit.HasEvent(t, obj, test.reason, test.message)
		})
	}
	kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "good")), csr.Issued)
}

// TestStoredBadInput stores objects in etcd that no API server would accept. It expects a reason, and a loop that
// continues.
func TestStoredBadInput(t *testing.T) {
	kit.Parallel(t)
	kit.StartLoop(t, csrenv.Options{})
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}}, weak)
	if err != nil {
		t.Fatal(err)
	}
	forged := func(data []byte) []byte {
		block, _ := pem.Decode(data)
		block.Bytes[len(block.Bytes)-1] ^= 1
		return pem.EncodeToMemory(block)
	}
	for name, test := range map[string]struct {
		mod     func(*kit.Request)
		reason  string
		message string
	}{
		"no-pem": {func(obj *kit.Request) { obj.Spec.Request = []byte("hello") }, "Malformed", "not a PEM block of type CERTIFICATE REQUEST"},
		"garbage": {func(obj *kit.Request) {
			obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
		}, "Malformed", "not a valid PKCS#10 request"},
		"forged": {func(obj *kit.Request) { obj.Spec.Request = forged(obj.Spec.Request) }, "Malformed", "signature"},
		"weak-key": {func(obj *kit.Request) {
			obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		}, "KeyTooWeak", "RSA key of 1024 bits is too weak"},
		"masters": {func(obj *kit.Request) {
			obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a", Organization: []string{"x", "system:masters"}}})
		}, "SubjectNotPermitted", "never issues O=system:*"},
	} {
		t.Run(name, func(t *testing.T) {
			obj := kit.NodeRequest(t, "", func(obj *kit.Request) {
				obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
				obj.Name, obj.UID, obj.CreationTimestamp = "stored-"+name, types.UID("stored-"+name), metav1.Now()
				obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
				obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}})
			})
			test.mod(obj)
			csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Stored by a test.", time.Now())
			obj.Status.Conditions[0].LastTransitionTime = metav1.Now()
			if err := kit.ControlPlane(t).Store(t.Context(), "certificatesigningrequests/"+obj.Name, obj); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = kit.Admin(t).Delete(context.Background(), obj) })
			kit.HasEvent(t, obj, test.reason, test.message)
			if test.reason == "Malformed" { // the API server refuses any change of an object that it can't validate
				if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Approved {
					t.Errorf("request is %s, want Approved", got)
				}
				return
			}
			failed := kit.Reaches(t, obj, csr.Failed).Status.Conditions[1]
			if failed.Reason != test.reason || !strings.Contains(failed.Message, test.message) {
				t.Errorf("Failed with %s: %s, want %s: %s", failed.Reason, failed.Message, test.reason, test.message)
			}
		})
	}
	kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "good")), csr.Issued)
}

// TestNothingBeyondTheRequestIsIssued requests more than a certificate may hold.
func TestNothingBeyondTheRequestIsIssued(t *testing.T) {
	kit.Parallel(t)
	kit.StartLoop(t, csrenv.Options{})
	isCA, err := asn1.Marshal(struct{ IsCA bool }{true})
	if err != nil {
		t.Fatal(err)
	}
	obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "", func(obj *kit.Request) {
		obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
		obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{
			Subject:         pkix.Name{CommonName: "a", ExtraNames: []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}, Value: "root"}}},
			ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: isCA}, {Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: []byte{5, 0}}},
		})
	}))
	kit.Approve(t, obj)
	cert := kit.Leaf(t, kit.Reaches(t, obj, csr.Issued))
	if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature || cert.Subject.String() != "CN=a" {
		t.Errorf("issued CA %t, key usage %d, subject %s", cert.IsCA, cert.KeyUsage, cert.Subject)
	}
	for _, extension := range cert.Extensions {
		if extension.Id.Equal(asn1.ObjectIdentifier{1, 2, 3, 4}) {
			t.Error("issued an extension that was asked for")
		}
	}
}
