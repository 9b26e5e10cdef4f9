// Package csr turns a CertificateSigningRequest object into values that rules judge and a signer signs. It does no
// I/O and reads no clock.
package csr

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// Requester is the user that created a request, as the API server authenticated it.
type Requester struct {
	Username string
	UID      string
	Groups   []string
	Extra    map[string]certificatesv1.ExtraValue
}

// Request is a parsed CertificateSigningRequest. Cert is the certificate as it would be issued: rules judge the same
// value that the signer signs.
type Request struct {
	Name       string
	UID        types.UID
	SignerName string
	Requester  Requester
	// Labels and Annotations are those of the object. Unlike the rest, they may change.
	Labels, Annotations map[string]string
	// Created is the creation time, by the API server's clock.
	Created time.Time
	// Usages are the requested usages, in the order of the request. Cert holds their X.509 form.
	Usages []certificatesv1.KeyUsage
	// UnknownUsages are the Usages without an X.509 form. A request with unknown usages can't be signed.
	UnknownUsages []certificatesv1.KeyUsage
	Cert          ca.Request
	// Dropped lists requested content that no certificate will hold: subject attributes, extensions and PKCS#10
	// attributes by OID, and other kinds of subjectAltName by kind.
	Dropped []string

	payload *x509.CertificateRequest
}

// Parse parses obj within DefaultLimits, see Limits.Parse.
func Parse(obj *certificatesv1.CertificateSigningRequest) (*Request, error) {
	return Limits{}.Parse(obj)
}

// Parse parses obj. The first PEM block of spec.request must be a CERTIFICATE REQUEST (RFC 7468 section 7). Parse
// ignores the rest, as kube-controller-manager does (pkg/apis/certificates/helpers.go, ParseCSR). A *Refused is
// final, because the spec is immutable. Any other error is a fault of the parser or of its caller, for example because
// obj is Trimmed, and says nothing about the request. A panic becomes such an error, because informers call Parse in
// goroutines that do not recover.
func (l Limits) Parse(obj *certificatesv1.CertificateSigningRequest) (req *Request, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			req, err = nil, fmt.Errorf("read spec.request of %s: panic: %v", obj.Name, fault)
		}
	}()
	if Trimmed(obj) || Large(obj) {
		return nil, errors.New("spec.request is not in the cache")
	}
	l = l.withDefaults()
	if refused := l.check(obj); refused != nil {
		return nil, refused
	}
	payload, attributes, refused := l.parsePayload(obj.Spec.Request)
	if refused != nil {
		return nil, refused
	}
	keyUsage, extKeyUsage, unknown := X509Usages(obj.Spec.Usages)
	subject := payload.Subject
	subject.Names, subject.ExtraNames = nil, nil // Names reach no certificate, and ExtraNames must not
	lifetime := time.Duration(0)
	if seconds := obj.Spec.ExpirationSeconds; seconds != nil { // the API server refuses zero seconds, which would mean none here
		lifetime = cmp.Or(time.Duration(*seconds)*time.Second, 1)
	}
	return &Request{
		Name:       obj.Name,
		UID:        obj.UID,
		SignerName: obj.Spec.SignerName,
		Requester: Requester{
			Username: obj.Spec.Username,
			UID:      obj.Spec.UID,
			Groups:   obj.Spec.Groups,
			Extra:    obj.Spec.Extra,
		},
		Labels:        obj.Labels,
		Annotations:   obj.Annotations,
		Created:       obj.CreationTimestamp.Time,
		Usages:        obj.Spec.Usages,
		UnknownUsages: unknown,
		Dropped:       droppedContent(payload, attributes),
		Cert: ca.Request{
			PublicKey:      payload.PublicKey,
			Subject:        subject,
			DNSNames:       payload.DNSNames,
			EmailAddresses: payload.EmailAddresses,
			IPAddresses:    payload.IPAddresses,
			URIs:           payload.URIs,
			KeyUsage:       keyUsage,
			ExtKeyUsage:    extKeyUsage,
			Lifetime:       lifetime,
		},
		payload: payload,
	}, nil
}

// parsePKCS10 is a variable so that a test can replace it with a parser that panics.
var parsePKCS10 = x509.ParseCertificateRequest

// parsePayload checks the limits and the key before it passes data to crypto/x509. It also returns the attributes of the
// request.
func (l Limits) parsePayload(data []byte) (*x509.CertificateRequest, []asn1.RawValue, *Refused) {
	der, info, refused := l.decode(data)
	if refused != nil {
		return nil, nil, refused
	}
	key, err := x509.ParsePKIXPublicKey(info.PublicKey.Raw) // it does no arithmetic on the key
	if err != nil {
		return nil, nil, &Refused{ReasonKeyNotPermitted,
			fmt.Sprintf("the public key can't be read: %v; %s", err, ca.PermittedKeys())}
	}
	if violation := ca.CheckKey(key); violation != nil {
		return nil, nil, &Refused{violation.Reason, violation.Message}
	}
	payload, err := parsePKCS10(der)
	if err != nil {
		return nil, nil, malformed(err)
	}
	return payload, info.Attributes, nil
}

func malformed(err error) *Refused {
	return &Refused{ReasonMalformed, fmt.Sprintf("spec.request is not a valid PKCS#10 request: %v", err)}
}

// CheckSignature returns an error unless the signature proves possession of the private key (RFC 2986 section 4.2).
// The API server checks the signature at creation, so only an object that bypassed the API can fail.
func (r *Request) CheckSignature() error {
	if err := r.payload.CheckSignature(); err != nil {
		return fmt.Errorf("the signature in spec.request does not match its public key: %w", err)
	}
	return nil
}

// KeyFingerprint returns the hex SHA-256 of the requested public key, as DER SubjectPublicKeyInfo.
func (r *Request) KeyFingerprint() string {
	sum := sha256.Sum256(r.payload.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// NodeName returns the node that the subject of r names, or "".
func (r *Request) NodeName() string {
	name, found := strings.CutPrefix(r.Cert.Subject.CommonName, NodeUserPrefix)
	if !found {
		return ""
	}
	return name
}

// NodeOf returns the node that the subject of obj names, or "". It is "" too if obj cannot be parsed.
func (l Limits) NodeOf(obj *certificatesv1.CertificateSigningRequest) string {
	req, err := l.Parse(obj)
	if err != nil {
		return ""
	}
	return req.NodeName()
}

// IsNode reports whether w is a kubelet, by the rule of the API server's node authorizer (Kubernetes
// pkg/auth/nodeidentifier/default.go). The user name must be NodeUserPrefix and a name, and NodeGroup must be among
// the groups.
func (w Requester) IsNode() bool {
	name, found := strings.CutPrefix(w.Username, NodeUserPrefix)
	return found && name != "" && slices.Contains(w.Groups, NodeGroup)
}

// Review returns the SubjectAccessReview that asks whether w may do what.
func (w Requester) Review(what authorizationv1.ResourceAttributes) *authorizationv1.SubjectAccessReview {
	extra := make(map[string]authorizationv1.ExtraValue, len(w.Extra))
	for key, values := range w.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: w.Username, UID: w.UID, Groups: w.Groups, Extra: extra, ResourceAttributes: &what,
	}}
}

// ServiceAccount returns the ServiceAccount whose user name and groups w has, as the API server authenticates its tokens.
// The namespace is empty if w is no ServiceAccount. Then the Objection says what is missing if w has the user name of one: a
// client certificate, for example, may have any name. The caller must compare the UID with that of the object.
func (w Requester) ServiceAccount() (namespace, name string, objection Objection) {
	text, found := strings.CutPrefix(w.Username, "system:serviceaccount:")
	if !found {
		return "", "", NoObjection
	}
	namespace, name, _ = strings.Cut(text, ":")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", "", "the requester is not a ServiceAccount"
	}
	for _, group := range []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace} {
		if !slices.Contains(w.Groups, group) {
			return "", "", Objection("the requester has the name of a ServiceAccount, but is not in the group " + group)
		}
	}
	return namespace, name, NoObjection
}

// HasServingUsages reports whether the usages are those of a kubelet's serving certificate, with or without key
// encipherment.
func (r *Request) HasServingUsages() bool {
	return isUsageSet(r.Usages, certificatesv1.UsageServerAuth)
}

// ForClients reports whether the certificate is valid for clients: also one without an extended key usage is.
func (r *Request) ForClients() bool {
	usages := r.Cert.ExtKeyUsage
	return len(usages) == 0 || slices.Contains(usages, x509.ExtKeyUsageAny) || slices.Contains(usages, x509.ExtKeyUsageClientAuth)
}

// OtherSubject lists the attributes of the subject other than common name and organization, for example "OU=unit".
func (r *Request) OtherSubject() []string {
	subject := r.Cert.Subject
	subject.CommonName, subject.Organization = "", nil
	var other []string
	for _, rdn := range subject.ToRDNSequence() {
		other = append(other, pkix.RDNSequence{rdn}.String())
	}
	return other
}

// TokenGroupPrefix begins the groups that bind a bootstrap token to one node.
const TokenGroupPrefix = "system:bootstrappers:node:"

// BoundHere reports whether a group binds the requester to the requested node.
func (r *Request) BoundHere() bool {
	return slices.Contains(r.Requester.Groups, TokenGroup(r.NodeName()))
}

// BoundElsewhere reports whether groups bind the requester only to other nodes than the requested one.
func (r *Request) BoundElsewhere() bool {
	return !r.BoundHere() && slices.ContainsFunc(r.Requester.Groups, func(group string) bool {
		return strings.HasPrefix(group, TokenGroupPrefix)
	})
}

// TokenGroup returns the group whose members may request a first certificate for node and for no other node. It
// contains the SHA-256 of the node's name in hex digits. The name itself may have characters that the API server does
// not permit in a group of a bootstrap token.
func TokenGroup(node string) string {
	sum := sha256.Sum256([]byte(node))
	return TokenGroupPrefix + hex.EncodeToString(sum[:])
}

// maxText is the longest text from a requester, in bytes, that a log line or a message holds.
const maxText = 256

// Shorten cuts text that a requester chose to at most 256 bytes.
func Shorten(text string) string { return ShortenTo(text, maxText) }

// ShortenTo cuts text to at most room bytes. A shortened text ends in "...".
func ShortenTo(text string, room int) string { return ca.Shorten(text, room) }

// ShortenAll bounds the number and the length of texts that a requester chose, for a message.
func ShortenAll(all []string) []string {
	const most = 8
	shown := make([]string, 0, most+1)
	for i, text := range all {
		if i == most {
			return append(shown, fmt.Sprintf("and %d more", len(all)-most))
		}
		shown = append(shown, Shorten(text))
	}
	return shown
}

// SubjectText returns the subject as it would be issued, shortened, for logs and messages.
func (r *Request) SubjectText() string { return ca.SubjectText(r.Cert.Subject, maxText) }

// Pause returns the time until a request of that age is judged again if no event wakes it. The pause equals the age,
// but is at least a second and at most five minutes. It doubles without a counter, and a restart does not change it.
func Pause(age time.Duration) time.Duration {
	return min(max(age, time.Second), 5*time.Minute)
}

const (
	// CredentialIDKey is the key in Requester.Extra under which the API server records the credential of the requester,
	// from Kubernetes 1.32 on (k8s.io/apiserver/pkg/authentication/user, CredentialIDKey). No requester can set it: only
	// users who may impersonate it, authenticating front proxies and webhooks that authenticate tokens can.
	CredentialIDKey = "authentication.kubernetes.io/credential-id"
	// NodeNameKey is the key in Requester.Extra under which the API server records the node to which the token of a
	// ServiceAccount is bound, from Kubernetes 1.30 on (pkg/serviceaccount/util.go, NodeNameKey).
	NodeNameKey = "authentication.kubernetes.io/node-name"
	// CertificateIDPrefix begins the ID of a client certificate. The SHA-256 of its DER follows, in lower-case hex
	// (k8s.io/apiserver/pkg/authentication/request/x509, CommonNameUserConversion).
	CertificateIDPrefix = "X509SHA256="
)

// Certificates returns the SHA-256 of the client certificates with which w authenticated, in lower-case hex. There is
// at most one, unless a front proxy, a webhook or an impersonating user has set more.
//
// The SHA-256 is that of the whole certificate, with its signature. Whoever has the certificate can write the signature
// in another way that verifies as well, so the value connects requests of honest clients only.
func (w Requester) Certificates() []string {
	var certificates []string
	for _, id := range w.Extra[CredentialIDKey] {
		text, found := strings.CutPrefix(id, CertificateIDPrefix)
		if sum, err := hex.DecodeString(text); found && err == nil && len(sum) == sha256.Size {
			certificates = append(certificates, strings.ToLower(text))
		}
	}
	return certificates
}
