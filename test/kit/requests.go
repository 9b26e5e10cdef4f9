package kit

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Request is a CertificateSigningRequest.
type Request = certificatesv1.CertificateSigningRequest

// NodeRequest returns a kubelet's request for a client certificate, named after the test.
func NodeRequest(t testing.TB, node string, mods ...func(*Request)) *Request {
	t.Helper()
	obj := &Request{
		ObjectMeta: metav1.ObjectMeta{GenerateName: strings.ToLower(strings.NewReplacer("/", "-", "_", "-", "'", "").Replace(t.Name())) + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Request:    Payload(t, x509.CertificateRequest{Subject: nodeSubject(node)}),
		},
	}
	for _, mod := range mods {
		mod(obj)
	}
	return obj
}

func nodeSubject(node string) pkix.Name {
	return pkix.Name{CommonName: csr.NodeUserPrefix + node, Organization: []string{csr.NodeGroup}}
}

// Payload returns a PKCS #10 request in PEM, with a new key.
func Payload(t testing.TB, template x509.CertificateRequest) []byte {
	t.Helper()
	der := Must(x509.CreateCertificateRequest(rand.Reader, &template, NewKey(t)))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// NewKey returns a new ECDSA key.
func NewKey(t testing.TB) crypto.Signer {
	t.Helper()
	return Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

// Create creates obj with a client of t's control plane, and deletes it at the end.
func Create(t testing.TB, c client.Client, obj client.Object) {
	t.Helper()
	NoError(t, c.Create(t.Context(), obj))
	AtEnd(t, func() error { return client.IgnoreNotFound(Admin(t).Delete(context.Background(), obj)) })
}

// Get reads the object of that name into obj, which is empty, as the administrator, and returns obj.
func Get[T client.Object](t testing.TB, namespace, name string, obj T) T {
	t.Helper()
	NoError(t, Admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, obj))
	return obj
}

// Remove deletes obj as the administrator.
func Remove(t testing.TB, obj client.Object) {
	t.Helper()
	NoError(t, Admin(t).Delete(t.Context(), obj))
}

// Update writes obj as the administrator.
func Update(t testing.TB, obj client.Object) {
	t.Helper()
	NoError(t, Admin(t).Update(t.Context(), obj))
}

// CreateRequest creates obj as Create does, and returns it.
func CreateRequest(t testing.TB, c client.Client, obj *Request) *Request {
	t.Helper()
	Create(t, c, obj)
	return obj
}

// Approve approves obj as kubectl certificate approve does, and returns it.
func Approve(t testing.TB, obj *Request) *Request {
	t.Helper()
	return Decide(t, obj, certificatesv1.CertificateApproved)
}

// Decide approves or denies obj as an administrator, and returns it.
func Decide(t testing.TB, obj *Request, kind certificatesv1.RequestConditionType) *Request {
	t.Helper()
	csr.AddCondition(obj, kind, "ByHand", "Decided by a test.", time.Time{})
	NoError(t, Admin(t).SubResource("approval").Update(t.Context(), obj))
	return obj
}

// Reload reads obj again.
func Reload(t testing.TB, obj *Request) *Request {
	t.Helper()
	NoError(t, Admin(t).Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
	return obj
}

// Leaf parses the certificate of obj.
func Leaf(t testing.TB, obj *Request) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(obj.Status.Certificate)
	if block == nil || len(rest) > 0 {
		t.Fatalf("status.certificate of %s is not one PEM block: %q", obj.Name, obj.Status.Certificate)
	}
	return Must(x509.ParseCertificate(block.Bytes))(t)
}

// IssuedBy fails unless a CA has issued the certificate of obj.
func IssuedBy(t *testing.T, obj *Request, by *csrenv.CA) {
	t.Helper()
	if err := Leaf(t, obj).CheckSignatureFrom(Certificate(t, by)); err != nil {
		t.Errorf("request %s: %v", obj.Name, err)
	}
}

// ServingRequest returns the request of the kubelet of node: SANs that parse as addresses become addresses, and
// others names.
func ServingRequest(t testing.TB, node string, sans ...string) *Request {
	t.Helper()
	template := x509.CertificateRequest{Subject: nodeSubject(node)}
	for _, san := range sans {
		if ip := net.ParseIP(san); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, san)
		}
	}
	return NodeRequest(t, node, func(obj *Request) {
		obj.Spec.SignerName, obj.Spec.Request = certificatesv1.KubeletServingSignerName, Payload(t, template)
		obj.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	})
}

// ClientRequest returns a request for a client certificate of user.
func ClientRequest(t *testing.T, user string) *Request {
	t.Helper()
	return NodeRequest(t, "", func(obj *Request) {
		obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
		obj.Spec.Request = Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: user}})
	})
}

// WrongUsage makes a request that the approver does not approve, and that the signer marks as Failed.
func WrongUsage(obj *Request) {
	obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth)
}

// NoFinalizers is a patch that removes the finalizers of an object.
var NoFinalizers = client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))

// CreateMarked creates a request with labels, a finalizer, an owner and an annotation of size bytes.
func CreateMarked(t *testing.T, node string, size int, change ...func(*Request)) *Request {
	t.Helper()
	obj := CreateRequest(t, Admin(t), NodeRequest(t, node, append(change, func(obj *Request) {
		obj.Annotations = map[string]string{"example.com/note": strings.Repeat("x", size)}
		obj.Labels = map[string]string{"example.com/label": "y"}
		obj.Finalizers = []string{"example.com/finalizer"}
		obj.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "u"}}
	})...))
	AtEnd(t, func() error { return Admin(t).Patch(context.Background(), obj, NoFinalizers) })
	return obj
}

// NodeMessage and SelfNodeMessage are the messages with which kube-controller-manager approves kubelets (its sarapprove.go).
const (
	NodeMessage     = "Auto approving kubelet client certificate after SubjectAccessReview."
	SelfNodeMessage = "Auto approving self kubelet client certificate after SubjectAccessReview."
)
