package parity

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"strings"
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

// outcome is the result of a request, without values that differ from run to run.
type outcome struct {
	State string
	// Conditions and Certificate are a text for each condition and for each part of the certificate.
	Conditions, Certificate []string
}

// stateOf returns the state of obj in the notation of row.want.
func stateOf(obj *certificatesv1.CertificateSigningRequest) string {
	if obj == nil {
		return gone
	}
	var parts []string
	for _, condition := range obj.Status.Conditions {
		parts = append(parts, string(condition.Type))
	}
	if len(obj.Status.Certificate) > 0 {
		parts = append(parts, "Issued")
	}
	return strings.Join(parts, " ")
}

// read returns the outcome of the row, whose object is obj.
func (u *turn) read(r row, key string, obj *certificatesv1.CertificateSigningRequest) outcome {
	found := outcome{State: stateOf(obj)}
	if obj == nil {
		return found
	}
	for _, condition := range obj.Status.Conditions {
		filled := !condition.LastUpdateTime.IsZero() && !condition.LastTransitionTime.IsZero()
		found.Conditions = append(found.Conditions, fmt.Sprintf("%s=%s %s: %s (times filled: %t)",
			condition.Type, condition.Status, condition.Reason, condition.Message, filled))
	}
	switch {
	case len(obj.Status.Certificate) == 0:
	case r.certificate == nil:
		found.Certificate = u.describe(obj, u.from[key])
	case !bytes.Equal(r.certificate, obj.Status.Certificate):
		found.Certificate = []string{"replaced"}
	}
	return found
}

// describe describes the certificate of obj, which was issued after from.
func (u *turn) describe(obj *certificatesv1.CertificateSigningRequest, from time.Time) (texts []string) {
	say := func(format string, values ...any) { texts = append(texts, fmt.Sprintf(format, values...)) }
	block, rest := pem.Decode(obj.Status.Certificate)
	if block == nil {
		return []string{"no PEM"}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return []string{err.Error()}
	}
	say("%s %v", block.Type, block.Headers)
	say("version %d, issuer %s, signature %s", cert.Version, cert.Issuer, cert.SignatureAlgorithm)
	say("subject %s, DER %x", cert.Subject, cert.RawSubject)
	for _, extension := range cert.Extensions {
		value := hex.EncodeToString(extension.Value)
		if extension.Id.String() == "2.5.29.35" {
			value = "of the CA" // it depends on the CA's key; the number of bytes follows
		}
		say("%s critical=%t %s", extension.Id, extension.Critical, value)
	}
	say("authority key ID of %d bytes, subject key ID of %d bytes", len(cert.AuthorityKeyId), len(cert.SubjectKeyId))
	bits := cert.SerialNumber.BitLen()
	say("serial number of 1 to 128 bits: %t", bits >= 1 && bits <= 128 && cert.SerialNumber.Sign() > 0)
	lifetime := cert.NotAfter.Sub(cert.NotBefore).String()
	for _, end := range u.ends {
		if cert.NotAfter.Equal(end) {
			lifetime = "until the CA ends"
		}
	}
	// Certificates hold whole seconds.
	early := cert.NotBefore.Add(5 * time.Minute).Sub(from).Round(time.Second)
	if early >= -2*time.Second && early <= time.Since(from)+2*time.Second {
		early = 0
	}
	say("lifetime %s, valid 5 min before it was issued, and off by %s", lifetime, early)
	requested, _ := pem.Decode(obj.Spec.Request)
	parsed, err := x509.ParseCertificateRequest(requested.Bytes)
	say("the requested key: %t", err == nil && bytes.Equal(parsed.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo))
	if next, more := pem.Decode(rest); next != nil && len(more) == 0 {
		if issuer, err := x509.ParseCertificate(next.Bytes); err == nil && cert.CheckSignatureFrom(issuer) == nil {
			say("followed by the issuer")
			return texts
		}
	}
	if len(rest) > 0 {
		say("followed by %q", rest)
	}
	return texts
}
