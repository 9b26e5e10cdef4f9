package parity

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	apiserverClient = certificatesv1.KubeAPIServerClientSignerName
	kubeletClient   = certificatesv1.KubeAPIServerClientKubeletSignerName
	kubeletServing  = certificatesv1.KubeletServingSignerName
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
// the signer kubernetes.io/kube-apiserver-client.
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

	// stored writes the request directly to etcd, as if an API server had stored it age ago, with certificate.
	stored      bool
	age         time.Duration
	certificate []byte
	// live creates the request while the controllers run, after all other rows have settled. grants creates the
	// requester's permission only then.
	live, grants bool
	start        start

	want string
	// deviation is the id in docs/reference/kcm-parity.md of a difference. ours is then the outcome with our manager,
	// message the last text of it: the reason and message of the Failed condition, or the end of the certificate. log is a
	// text in our log.
	deviation, ours, message, log string
}

// user is the user that creates a request.
type user struct {
	name   string
	groups []string
}

// The requesters. The cluster binds nodeclient to the group bootstrappers and selfnodeclient to the group renewers.
// Every user may create requests.
var (
	bootstrapper = user{"bootstrapper", []string{"parity:bootstrappers", "system:authenticated"}}
	stranger     = user{"stranger", []string{"system:authenticated"}}
)

func nodeUser(name string, groups ...string) user {
	return user{"system:node:" + name, append([]string{"system:authenticated"}, groups...)}
}

// boundUser returns a user with a bootstrap token for the node whose name has that hash.
func boundUser(hash string) user {
	return user{"bound-" + hash, append([]string{"system:bootstrappers:node:" + hash}, bootstrapper.groups...)}
}

func nodeName(name string) *pkix.Name {
	return &pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name}
}

func usages(names ...certificatesv1.KeyUsage) []certificatesv1.KeyUsage { return names }

// with returns base after changes, so that a row shows only its own part.
func with(base row, changes ...func(*row)) row {
	if base.subject != nil {
		subject := *base.subject
		base.subject = &subject
	}
	for _, change := range changes {
		change(&base)
	}
	return base
}

// deviates returns base with a deviation.
func deviates(base row, id, ours, message string) row {
	base.deviation, base.ours, base.message = id, ours, message
	return base
}

// since returns a condition that is age old.
func since(kind certificatesv1.RequestConditionType, age time.Duration) certificatesv1.CertificateSigningRequestCondition {
	at := metav1.NewTime(time.Now().Add(-age))
	return certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: "Parity", Message: "Made for a test.", LastUpdateTime: at, LastTransitionTime: at,
	}
}

// now returns new conditions of these kinds.
func now(kinds ...certificatesv1.RequestConditionType) (all []certificatesv1.CertificateSigningRequestCondition) {
	for _, kind := range kinds {
		all = append(all, since(kind, 0))
	}
	return all
}

// object returns the API object for the row.
func (r row) object(name string) (*certificatesv1.CertificateSigningRequest, error) {
	request, err := r.pem()
	if err != nil {
		return nil, err
	}
	obj := &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: r.signerName(), Usages: r.usages, Username: r.user.name, Groups: r.user.groups,
		},
		Status: certificatesv1.CertificateSigningRequestStatus{Conditions: r.conditions},
	}
	if r.usages == nil {
		obj.Spec.Usages = usages("digital signature", "client auth")
	}
	if r.seconds != 0 {
		obj.Spec.ExpirationSeconds = &r.seconds
	}
	if r.stored {
		obj.UID, obj.CreationTimestamp, obj.Status.Certificate = uuid.NewUUID(), metav1.NewTime(time.Now().Add(-r.age)), r.certificate
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
	template.RawSubject, template.Subject = r.rawSubject, pkix.Name{CommonName: "parity"}
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

// Content that a request may have and no certificate of these signers holds.
var (
	askForCA = []pkix.Extension{
		{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: der(struct{ CA bool }{true})},
		{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Critical: true, Value: der(asn1.BitString{Bytes: []byte{4}, BitLength: 6})},
	}
	custom    = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: der("anything")}}
	otherName = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: der([]asn1.RawValue{{
		Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true,
		Bytes: append(der(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 20, 2, 3}),
			der(asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: der("upn@example.org")})...),
	}})}}
	spiffe   = &url.URL{Scheme: "spiffe", Host: "example.org", Path: "/n1"}
	allNames = x509.CertificateRequest{
		DNSNames:       []string{"b.example.org", "a.example.org", "*.example.org"},
		EmailAddresses: []string{"a@example.org"},
		IPAddresses:    []net.IP{net.IPv4(10, 0, 0, 1).To4(), net.IPv6loopback},
		URIs:           []*url.URL{spiffe},
	}
)

func sans(dns ...string) x509.CertificateRequest { return x509.CertificateRequest{DNSNames: dns} }

// attribute is one attribute of a subject.
type attribute pkix.AttributeTypeAndValue

var (
	userID          = asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}
	domainComponent = asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 25}
	commonName      = asn1.ObjectIdentifier{2, 5, 4, 3}
	serialNumber    = asn1.ObjectIdentifier{2, 5, 4, 5}
	organization    = asn1.ObjectIdentifier{2, 5, 4, 10}
)

// name returns a subject with these attributes, in order, each in its own RDN.
func name(attributes ...attribute) []byte {
	var sequence pkix.RDNSequence
	for _, one := range attributes {
		sequence = append(sequence, pkix.RelativeDistinguishedNameSET{pkix.AttributeTypeAndValue(one)})
	}
	return der(sequence)
}

// oneRDN returns a subject with these attributes in one RDN.
func oneRDN(attributes ...attribute) []byte {
	var set pkix.RelativeDistinguishedNameSET
	for _, one := range attributes {
		set = append(set, pkix.AttributeTypeAndValue(one))
	}
	return der(pkix.RDNSequence{set})
}

func der(value any) []byte { return must(asn1.Marshal(value)) }

// must returns value. An error is a mistake in the table.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Encodings of the payload that PEM readers treat differently.

func trailing(request []byte) []byte { return append(request, "and more\n"...) }

func textBefore(request []byte) []byte { return append([]byte("Subject: parity\n\n"), request...) }

func carriageReturns(request []byte) []byte {
	return bytes.ReplaceAll(request, []byte("\n"), []byte("\r\n"))
}

func secondBlock(request []byte) []byte { return append(request, request...) }

func otherBlockFirst(request []byte) []byte {
	return append(pem.EncodeToMemory(&pem.Block{Type: "PARITY", Bytes: []byte{1}}), request...)
}

func withHeaders(request []byte) []byte {
	return inBlock(request, func(block *pem.Block) { block.Headers = map[string]string{"Comment": "parity"} })
}

func newBlockType(request []byte) []byte {
	return inBlock(request, func(block *pem.Block) { block.Type = "NEW CERTIFICATE REQUEST" })
}

func badSignature(request []byte) []byte {
	return inBlock(request, func(block *pem.Block) { block.Bytes[len(block.Bytes)-1] ^= 1 })
}

func garbage(request []byte) []byte {
	return inBlock(request, func(block *pem.Block) { block.Bytes = []byte("garbage") })
}

func noPEM([]byte) []byte { return []byte("no PEM at all") }

// inBlock returns request with a change of its PEM block.
func inBlock(request []byte, change func(*pem.Block)) []byte {
	block, _ := pem.Decode(request)
	change(block)
	return pem.EncodeToMemory(block)
}
