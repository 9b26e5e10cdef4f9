// Package parity sends the same requests through the real kube-controller-manager and through csr-controller-manager,
// each alone and in turn on one API server, and compares what becomes of them field by field.
package parity

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	apiserverClient = "kubernetes.io/kube-apiserver-client"
	kubeletClient   = "kubernetes.io/kube-apiserver-client-kubelet"
	kubeletServing  = "kubernetes.io/kubelet-serving"
	legacyUnknown   = "kubernetes.io/legacy-unknown"
)

// What can become of a request: its conditions in order, and Issued when there is a certificate.
const (
	untouched      = ""
	approvedOnly   = "Approved"
	approvedIssued = "Approved Issued"
	approvedFailed = "Approved Failed"
	denied         = "Denied"
	gone           = "Gone"
)

// row is one request and what must become of it. A zero field stands for the base: a client certificate with a P-256
// key for the signer kubernetes.io/kube-apiserver-client, made by somebody without rights.
type row struct {
	signer     string
	usages     []certificatesv1.KeyUsage
	subject    *pkix.Name
	rawSubject []byte
	names      x509.CertificateRequest // only its names and extensions count
	key        string
	seconds    int32
	user       user
	payload    func([]byte) []byte
	conditions []certificatesv1.CertificateSigningRequestCondition

	// stored goes straight into etcd, as if an API server had left it age ago.
	stored bool
	age    time.Duration
	// endedAgo is the age of the end of a certificate that is stored with it; certificate is its bytes instead.
	endedAgo    time.Duration
	certificate []byte
	// live is made while the controllers run, after everything else has settled; grants makes what the requester needs
	// only then.
	live, grants bool
	// start is when it is made.
	start start
	// use authenticates with the certificate.
	use bool

	want string
	// deviation names what docs/reference/kcm-parity.md says of a difference; ours is then what we make of the request, message
	// the reason and message of our Failed condition, and log what our log must say.
	deviation, ours, message, log string
}

// user is who makes a request.
type user struct {
	name   string
	groups []string
}

func nodeName(name string) *pkix.Name {
	return &pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name}
}

func usages(names ...certificatesv1.KeyUsage) []certificatesv1.KeyUsage { return names }

// with returns base after changes, so that a row shows only what it is about.
func with(base row, changes ...func(*row)) row {
	for _, change := range changes {
		change(&base)
	}
	return base
}

// since is a condition that is age old.
func since(kind certificatesv1.RequestConditionType, age time.Duration) certificatesv1.CertificateSigningRequestCondition {
	at := metav1.NewTime(time.Now().Add(-age))
	return certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: "Parity", Message: "Made for a test.", LastUpdateTime: at, LastTransitionTime: at,
	}
}

func conditions(list ...certificatesv1.CertificateSigningRequestCondition) []certificatesv1.CertificateSigningRequestCondition {
	return list
}

// object makes the API object that the row describes.
func (r row) object(name string) (*certificatesv1.CertificateSigningRequest, error) {
	request, err := r.pem()
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	obj := &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: r.signerName(), Usages: r.usages, Username: r.user.name, Groups: r.user.groups,
		},
	}
	if r.usages == nil {
		obj.Spec.Usages = usages("digital signature", "client auth")
	}
	if r.seconds != 0 {
		obj.Spec.ExpirationSeconds = &r.seconds
	}
	obj.Status.Conditions = r.conditions
	if r.stored {
		obj.UID = uuid.NewUUID()
		obj.CreationTimestamp = metav1.NewTime(time.Now().Add(-r.age))
		obj.Status.Certificate, err = r.storedCertificate()
	}
	return obj, err
}

func (r row) signerName() string {
	if r.signer == "" {
		return apiserverClient
	}
	return r.signer
}

func (r row) pem() ([]byte, error) {
	template := r.names
	template.RawSubject = r.rawSubject
	template.Subject = pkix.Name{CommonName: "parity"}
	if r.subject != nil {
		template.Subject = *r.subject
	}
	key, err := keyOf(r.key)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		return nil, err
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	if r.payload != nil {
		request = r.payload(request)
	}
	return request, nil
}
