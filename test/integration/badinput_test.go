package integration

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csrenv"
)

// startLoop runs the three controllers in process on the shared control plane, for the duration of the test.
func startLoop(t testing.TB, opts csrenv.Options) *csrenv.Env {
	t.Helper()
	if opts.CA == nil {
		opts.CA = shared.CA
	}
	opts.SkipRBAC = true
	env, err := csrenv.Start(t.Context(), shared.Config, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	return env
}

// TestBadInput sends what was seen in the wild, each through the approval of somebody careless where the approver has
// no say, and then something good, which must not notice.
func TestBadInput(t *testing.T) {
	startLoop(t, csrenv.Options{})
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
			obj := createRequest(t, admin, nodeRequest(t, "", func(obj *request) {
				obj.Spec.SignerName, obj.Spec.Usages, obj.Spec.Request = test.signer, test.usages, payload(t, test.request)
			}))
			approve(t, obj)
			failed := reaches(t, obj, csr.Failed).Status.Conditions[1]
			if failed.Reason != test.reason || failed.Message != test.message {
				t.Errorf("Failed with %s: %s, want %s: %s", failed.Reason, failed.Message, test.reason, test.message)
			}
			hasEvent(t, obj, test.reason, test.message)
		})
	}
	reaches(t, createRequest(t, admin, nodeRequest(t, "good")), csr.Issued)
}

// TestStoredBadInput puts into etcd what no API server would take, and expects a reason and a loop that goes on.
func TestStoredBadInput(t *testing.T) {
	startLoop(t, csrenv.Options{})
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
		mod     func(*request)
		reason  string
		message string
	}{
		"no-pem": {func(obj *request) { obj.Spec.Request = []byte("hello") }, "Malformed", "not a PEM block of type CERTIFICATE REQUEST"},
		"garbage": {func(obj *request) {
			obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
		}, "Malformed", "no valid PKCS#10 request"},
		"forged": {func(obj *request) { obj.Spec.Request = forged(obj.Spec.Request) }, "Malformed", "signature"},
		"weak-key": {func(obj *request) {
			obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		}, "KeyTooWeak", "RSA key of 1024 bits is too weak"},
		"masters": {func(obj *request) {
			obj.Spec.Request = payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a", Organization: []string{"x", "system:masters"}}})
		}, "SubjectNotPermitted", "never issues O=system:masters"},
		"unknown-usage": {func(obj *request) {
			obj.Spec.SignerName, obj.Spec.Usages = "kubernetes.io/legacy-unknown", []certificatesv1.KeyUsage{"fly"}
		}, "UsagesNotPermitted", `unrecognized usage values: ["fly"]`},
	} {
		t.Run(name, func(t *testing.T) {
			obj := nodeRequest(t, "", func(obj *request) {
				obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
				obj.Name, obj.UID, obj.CreationTimestamp = "stored-"+name, types.UID("stored-"+name), metav1.Now()
				obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
				obj.Spec.Request = payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}})
			})
			test.mod(obj)
			csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Stored by a test.", time.Now())
			obj.Status.Conditions[0].LastTransitionTime = metav1.Now()
			if err := shared.Store(t.Context(), "certificatesigningrequests/"+obj.Name, obj); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = admin.Delete(context.Background(), obj) })
			hasEvent(t, obj, test.reason, test.message)
			if test.reason == "Malformed" { // the API server takes no change to what it can't validate
				if got := csr.StateOf(reload(t, obj)); got != csr.Approved {
					t.Errorf("request is %s, want Approved", got)
				}
				return
			}
			failed := reaches(t, obj, csr.Failed).Status.Conditions[1]
			if failed.Reason != test.reason || !strings.Contains(failed.Message, test.message) {
				t.Errorf("Failed with %s: %s, want %s: %s", failed.Reason, failed.Message, test.reason, test.message)
			}
		})
	}
	reaches(t, createRequest(t, admin, nodeRequest(t, "good")), csr.Issued)
}

// TestNothingBeyondTheRequestIsIssued asks for more than a certificate may hold.
func TestNothingBeyondTheRequestIsIssued(t *testing.T) {
	startLoop(t, csrenv.Options{})
	isCA, err := asn1.Marshal(struct{ IsCA bool }{true})
	if err != nil {
		t.Fatal(err)
	}
	obj := createRequest(t, admin, nodeRequest(t, "", func(obj *request) {
		obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
		obj.Spec.Request = payload(t, x509.CertificateRequest{
			Subject:         pkix.Name{CommonName: "a", ExtraNames: []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}, Value: "root"}}},
			ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: isCA}, {Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: []byte{5, 0}}},
		})
	}))
	approve(t, obj)
	cert := leaf(t, reaches(t, obj, csr.Issued))
	if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature || cert.Subject.String() != "CN=a" {
		t.Errorf("issued CA %t, key usage %d, subject %s", cert.IsCA, cert.KeyUsage, cert.Subject)
	}
	for _, extension := range cert.Extensions {
		if extension.Id.Equal(asn1.ObjectIdentifier{1, 2, 3, 4}) {
			t.Error("issued an extension that was asked for")
		}
	}
}

// TestFloodDelaysNobody lets one requester without permission keep hundreds of requests pending: another one's is
// issued as fast as ever, and the flood causes few Events.
func TestFloodDelaysNobody(t *testing.T) {
	const flood = 500
	startLoop(t, csrenv.Options{})
	grant(t, "flooder", mayCreate)
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	flooder, body := as(t, "flooder"), nodeRequest(t, "victim").Spec.Request
	var workers sync.WaitGroup
	for range 10 {
		workers.Go(func() {
			for range flood / 10 {
				obj := nodeRequest(t, "victim", func(obj *request) {
					obj.GenerateName, obj.Labels, obj.Spec.Request = "aaa-flood-", map[string]string{"flood": "yes"}, body
				})
				if err := flooder.Create(t.Context(), obj); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	t.Cleanup(func() {
		if err := admin.DeleteAllOf(context.Background(), &request{}, client.MatchingLabels{"flood": "yes"}); err != nil {
			t.Error(err)
		}
	})
	start := time.Now()
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "good")), csr.Issued)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("a good request took %s", took)
	}
	var flooded []request
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := admin.List(t.Context(), list, client.MatchingLabels{"flood": "yes"}); err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, obj := range list.Items {
		if csr.StateOf(&obj) == csr.Pending {
			flooded = append(flooded, obj)
		}
	}
	for _, obj := range flooded[:50] {
		told += len(eventsOf(t.Context(), t, &obj))
	}
	if len(flooded) != flood || told > 20 {
		t.Errorf("%d of %d are pending, %d Events about the first 50", len(flooded), flood, told)
	}
}

// TestFilesAreReloaded replaces the CA files as an administrator would: what waits is signed at once, a half-written
// pair changes nothing, and several certificates in one file are fine.
func TestFilesAreReloaded(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	profiles := func(o *controllers.Options) {
		pair := signer.NewKeyPair(signer.Files{Cert: certFile, Key: keyFile})
		for name, one := range o.Signer.Signers {
			one.KeyPair = pair
			o.Signer.Signers[name] = one
		}
	}
	startLoop(t, csrenv.Options{Customize: profiles})
	waiting := reaches(t, createRequest(t, admin, nodeRequest(t, "one")), csr.Approved)
	hasEvent(t, waiting, "CAMissing", "no such file")

	first, second := newCA(t), newCA(t)
	write(t, keyFile, first.KeyPEM)
	write(t, certFile, first.CertPEM)
	issuedBy(t, reaches(t, waiting, csr.Issued), first)

	write(t, keyFile, second.KeyPEM) // half of the new pair
	issuedBy(t, reaches(t, createRequest(t, admin, nodeRequest(t, "two")), csr.Issued), first)

	write(t, certFile, append(append([]byte("# old and new\n"), first.CertPEM...), second.CertPEM...))
	eventually(t, "the new CA signs", func(context.Context) error {
		obj := createRequest(t, admin, nodeRequest(t, "three"))
		if err := leaf(t, reaches(t, obj, csr.Issued)).CheckSignatureFrom(certificate(t, second)); err != nil {
			return fmt.Errorf("another one signs: %w", err)
		}
		return nil
	})
}

func newCA(t *testing.T) *csrenv.CA {
	t.Helper()
	made, err := csrenv.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func certificate(t *testing.T, of *csrenv.CA) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(of.CertPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func issuedBy(t *testing.T, obj *request, by *csrenv.CA) {
	t.Helper()
	if err := leaf(t, obj).CheckSignatureFrom(certificate(t, by)); err != nil {
		t.Errorf("request %s: %v", obj.Name, err)
	}
}
