// Package parity sends the same requests through the real kube-controller-manager and through csr-controller-manager,
// each alone and in turn on one API server. It compares the outcomes field by field.
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

// The possible outcomes of a request: its conditions in order, and Issued if there is a certificate.
const (
	untouched      = ""
	approvedOnly   = "Approved"
	approvedIssued = "Approved Issued"
	approvedFailed = "Approved Failed"
	denied         = "Denied"
	gone           = "Gone"
)

// row is one request and its expected outcome. A zero field means the base: a client certificate with a P-256 key for
// the signer kubernetes.io/kube-apiserver-client, requested by a user without rights.
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

	// stored writes the request directly to etcd, as if an API server had stored it age ago.
	stored bool
	age    time.Duration
	// endedAgo is the time since the expiry of a certificate that is stored with it. certificate is the bytes of a
	// certificate instead.
	endedAgo    time.Duration
	certificate []byte
	// live creates the request while the controllers run, after all other rows have settled. grants creates the
	// requester's permissions only then.
	live, grants bool
	// start is the start in which the request is created.
	start start
	// use authenticates with the certificate.
	use bool

	want string
	// deviation is the id in docs/reference/kcm-parity.md of a difference. ours is then the outcome with our manager,
	// message the reason and message of our Failed condition, and log the required text in our log.
	deviation, ours, message, log string
}

// user is the user that creates a request.
type user struct {
	name   string
	groups []string
}

func nodeName(name string) *pkix.Name {
	return &pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name}
}

func usages(names ...certificatesv1.KeyUsage) []certificatesv1.KeyUsage { return names }

// with returns base after changes, so that a row shows only its own part.
func with(base row, changes ...func(*row)) row {
	for _, change := range changes {
		change(&base)
	}
	return base
}

// since returns a condition that is age old.
func since(kind certificatesv1.RequestConditionType, age time.Duration) certificatesv1.CertificateSigningRequestCondition {
	at := metav1.NewTime(time.Now().Add(-age))
	return certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: "Parity", Message: "Made for a test.", LastUpdateTime: at, LastTransitionTime: at,
	}
}

func conditions(list ...certificatesv1.CertificateSigningRequestCondition) []certificatesv1.CertificateSigningRequestCondition {
	return list
}

// object returns the API object for the row.
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
		obj.Status.Certificate = r.certificate
		if r.endedAgo != 0 {
			obj.Status.Certificate = selfSigned("", time.Now().Add(-r.endedAgo), nil)
		}
	}
	return obj, nil
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
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, keyOf(r.key))
	if err != nil {
		return nil, err
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	if r.payload != nil {
		request = r.payload(request)
	}
	return request, nil
}
