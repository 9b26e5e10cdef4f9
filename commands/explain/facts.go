// Package explain says what a CertificateSigningRequest holds, whether a signer would refuse it, and what to do about a
// reason of the manager. It reads no clock and no API server.
package explain

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Facts is what the object of a request says. Its texts are those of the object, shortened. Other programs and people
// may have chosen them, so they are not safe for a terminal.
type Facts struct {
	Name   string    `json:"name"`
	State  csr.State `json:"state"`
	Signer string    `json:"signer"`
	// Node is the node that the request is for.
	Node      string    `json:"node,omitempty"`
	Created   time.Time `json:"created"`
	Requester string    `json:"requester"`
	Groups    []string  `json:"groups,omitempty"`
	// MadeWith holds the SHA-256 of the client certificate with which the request was made.
	MadeWith []string `json:"madeWith,omitempty"`
	Subject  string   `json:"subject,omitempty"`
	// Names are the subject alternative names.
	Names  []string `json:"names,omitempty"`
	Usages []string `json:"usages"`
	Key    string   `json:"key,omitempty"`
	// Lifetime is what the request asks for, or empty.
	Lifetime string `json:"lifetime,omitempty"`
	// Dropped is what the request asks for and no certificate holds.
	Dropped     []string     `json:"dropped,omitempty"`
	Conditions  []Condition  `json:"conditions,omitempty"`
	Certificate *Certificate `json:"certificate,omitempty"`
	// Refusal says why the signer would refuse the request, as far as the object shows it with the default limits.
	Refusal *Refusal `json:"refusal,omitempty"`
}

// Condition is a condition of the request.
type Condition struct {
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
}

// Certificate is the certificate that was issued.
type Certificate struct {
	SHA256    string    `json:"sha256"`
	Issuer    string    `json:"issuer"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// Problem says why the requester can't use it.
	Problem string `json:"problem,omitempty"`
}

// Refusal is a reason of docs/reference/reasons.md and a sentence.
type Refusal struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Of returns the facts of obj, and the parsed request, which is nil if Refusal says why it can't be parsed.
func Of(obj *certificatesv1.CertificateSigningRequest) (*Facts, *csr.Request) {
	f := &Facts{
		Name: csr.ShortenTo(obj.Name, 253), State: csr.StateOf(obj), Signer: csr.ShortenTo(obj.Spec.SignerName, 571),
		Created: obj.CreationTimestamp.UTC(), Requester: csr.Shorten(obj.Spec.Username),
		Groups: csr.ShortenAll(obj.Spec.Groups), Usages: texts(obj.Spec.Usages),
	}
	if seconds := obj.Spec.ExpirationSeconds; seconds != nil {
		f.Lifetime = (time.Duration(*seconds) * time.Second).String()
	}
	req, err := csr.Parse(obj)
	f.Refusal = refusal(req, err)
	if req != nil {
		f.read(req)
	}
	for _, condition := range obj.Status.Conditions[:min(len(obj.Status.Conditions), maxItems)] {
		f.Conditions = append(f.Conditions, Condition{
			Type: csr.Shorten(string(condition.Type)), Reason: csr.Shorten(condition.Reason),
			Message: csr.ShortenTo(condition.Message, maxMessage), Time: condition.LastUpdateTime.UTC(),
		})
	}
	if len(obj.Status.Certificate) > 0 {
		f.Certificate = certificate(obj.Status.Certificate, req)
	}
	return f, req
}

const (
	// maxItems bounds a list.
	maxItems = 20
	// maxMessage bounds a message in bytes, as the note of an Event is bounded.
	maxMessage = 1024
)

// read sets the fields that only the parsed request shows.
func (f *Facts) read(req *csr.Request) {
	f.Node, f.Subject = csr.Shorten(req.NodeName()), req.SubjectText()
	f.MadeWith, f.Dropped = req.Requester.Certificates(), csr.ShortenAll(req.Dropped)
	f.Key = describeKey(req.Cert.PublicKey) + ", SHA-256 " + req.KeyFingerprint()
	names := slices.Concat(req.Cert.DNSNames, req.Cert.EmailAddresses)
	for _, address := range req.Cert.IPAddresses {
		names = append(names, address.String())
	}
	for _, uri := range req.Cert.URIs {
		names = append(names, uri.String())
	}
	for _, name := range names { // all of them: whoever approves the request must see each
		f.Names = append(f.Names, csr.Shorten(name))
	}
}

func texts[T ~string](all []T) []string {
	texts := make([]string, len(all))
	for i, each := range all {
		texts[i] = string(each)
	}
	return csr.ShortenAll(texts)
}

func describeKey(public crypto.PublicKey) string {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA of %d bits", key.N.BitLen())
	case *ecdsa.PublicKey:
		return "ECDSA " + key.Curve.Params().Name
	case ed25519.PublicKey:
		return "Ed25519"
	default:
		return "of an unknown type"
	}
}

// refusal returns why a signer with the default profile never signs the request, or nil. err says why req is nil. The
// rules of a custom signer, and what depends on its CA, only the manager knows.
func refusal(req *csr.Request, err error) *Refusal {
	refused := (*csr.Refused)(nil)
	switch {
	case errors.As(err, &refused):
		return &Refusal{refused.Reason, refused.Message}
	case err != nil:
		return &Refusal{"InternalError", csr.Fault(err)}
	}
	if signer, builtin := csr.BuiltinSigner(req.SignerName); builtin {
		if err := signer.Shape(req); err != nil {
			return &Refusal{"SignerValidationFailure", err.Error()}
		}
	}
	if len(req.UnknownUsages) > 0 {
		return &Refusal{"UsagesNotPermitted", fmt.Sprintf("unrecognized usage values: %+q", csr.ShortenAll(texts(req.UnknownUsages)))}
	}
	profile, err := ca.NewProfile(ca.ProfileConfig{ForbiddenSubjects: []string{"O=system:masters"}})
	if err != nil {
		return &Refusal{"InternalError", err.Error()}
	}
	if violations := profile.Check(req.Cert); len(violations) > 0 {
		return &Refusal{violations[0].Reason, violations[0].Message}
	}
	if err := req.CheckSignature(); err != nil {
		return &Refusal{"Malformed", err.Error()}
	}
	return nil
}

// certificate describes the first certificate in data.
func certificate(data []byte, req *csr.Request) *Certificate {
	certs, err := ca.ParseCertificates(data)
	if err != nil || len(certs) == 0 {
		return &Certificate{Problem: "it cannot be parsed"}
	}
	leaf := certs[0]
	described := &Certificate{
		SHA256: fmt.Sprintf("%x", sha256.Sum256(leaf.Raw)), Issuer: csr.Shorten(leaf.Issuer.String()),
		NotBefore: leaf.NotBefore.UTC(), NotAfter: leaf.NotAfter.UTC(),
	}
	if req != nil && !req.KeyIn(leaf) {
		described.Problem = "it is for another key than the one in the request"
	}
	return described
}
