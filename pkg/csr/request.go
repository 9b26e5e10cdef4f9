// Package csr turns a CertificateSigningRequest object into values that rules judge and a signer signs. It does no
// I/O and reads no clock.
package csr

import (
	"cmp"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// Requester is who made a request, as the API server authenticated them.
type Requester struct {
	Username string
	UID      string
	Groups   []string
	Extra    map[string]certificatesv1.ExtraValue
}

// Request is a CertificateSigningRequest, read. Cert is the certificate as it would be issued, so that what a rule
// approves is what a signer signs.
type Request struct {
	Name       string
	UID        types.UID
	SignerName string
	Requester  Requester
	// Created is when the API server stored the request, by its clock.
	Created time.Time
	// Usages are the usages that were asked for, in the order of the request; Cert holds their X.509 form.
	Usages []certificatesv1.KeyUsage
	// UnknownUsages are those of Usages that have no X.509 form. A request that has any can't be signed.
	UnknownUsages []certificatesv1.KeyUsage
	Cert          ca.Request
	// Dropped names what the payload asks for and no certificate will hold: subject attributes, extensions and PKCS#10
	// attributes by OID, other kinds of subjectAltName by kind.
	Dropped []string

	payload *x509.CertificateRequest
}

// Parse reads obj within DefaultLimits, as Limits.Parse does.
func Parse(obj *certificatesv1.CertificateSigningRequest) (*Request, error) {
	return Limits{}.Parse(obj)
}

// Parse reads obj. The first PEM block of spec.request must be a CERTIFICATE REQUEST (RFC 7468 section 7); what
// follows it is ignored, as kube-controller-manager does (pkg/apis/certificates/helpers.go, ParseCSR). A *Refused is
// final: it is about the object's immutable spec. Any other error is a fault of the parser, and no answer about obj. A
// panic becomes such an error, since informers call Parse in goroutines that nothing recovers.
func (l Limits) Parse(obj *certificatesv1.CertificateSigningRequest) (req *Request, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			req, err = nil, fmt.Errorf("read spec.request of %s: panic: %v", obj.Name, fault)
		}
	}()
	payload, refused := l.withDefaults().parsePayload(obj.Spec.Request)
	if refused != nil {
		return nil, refused
	}
	keyUsage, extKeyUsage, unknown := x509Usages(obj.Spec.Usages)
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
		Created:       obj.CreationTimestamp.Time,
		Usages:        obj.Spec.Usages,
		UnknownUsages: unknown,
		Dropped:       droppedContent(payload),
		Cert: ca.Request{
			PublicKey:      payload.PublicKey,
			Subject:        knownAttributes(payload.Subject),
			DNSNames:       payload.DNSNames,
			EmailAddresses: payload.EmailAddresses,
			IPAddresses:    payload.IPAddresses,
			URIs:           payload.URIs,
			KeyUsage:       keyUsage,
			ExtKeyUsage:    extKeyUsage,
			Lifetime:       wish(obj.Spec.ExpirationSeconds),
		},
		payload: payload,
	}, nil
}

// parsePKCS10 is a variable for the test of a parser that panics.
var parsePKCS10 = x509.ParseCertificateRequest

// parsePayload checks the limits and the key before it hands anything to crypto/x509.
func (l Limits) parsePayload(data []byte) (*x509.CertificateRequest, *Refused) {
	if len(data) > l.RequestBytes {
		return nil, tooLarge("spec.request has", l.RequestBytes, "bytes", "maxRequestBytes")
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, &Refused{ReasonMalformed, "spec.request is not a PEM block of type CERTIFICATE REQUEST"}
	}
	if len(block.Bytes) > l.DERBytes {
		return nil, tooLarge("the PKCS#10 request in spec.request has", l.DERBytes, "bytes of DER", "maxDERBytes")
	}
	info, err := readOutline(block.Bytes)
	if err != nil {
		return nil, malformed(err)
	}
	if refused := l.checkCounts(info); refused != nil {
		return nil, refused
	}
	key, err := x509.ParsePKIXPublicKey(info.PublicKey.Raw) // it does no arithmetic on the key
	if err != nil {
		return nil, &Refused{ReasonKeyNotPermitted, fmt.Sprintf("the public key can't be read: %v; %s", err, ca.PermittedKeys)}
	}
	if violation := ca.CheckKey(key); violation != nil {
		return nil, &Refused{violation.Reason, violation.Message}
	}
	payload, err := parsePKCS10(block.Bytes)
	if err != nil {
		return nil, malformed(err)
	}
	return payload, nil
}

func malformed(err error) *Refused {
	return &Refused{ReasonMalformed, fmt.Sprintf("spec.request holds no valid PKCS#10 request: %v", err)}
}

// wish is the lifetime that was asked for; zero is none. A wish for no time at all, which the API server refuses, is still
// a wish.
func wish(seconds *int32) time.Duration {
	if seconds == nil {
		return 0
	}
	return cmp.Or(time.Duration(*seconds)*time.Second, 1)
}

// knownAttributes keeps what crypto/x509 writes into a certificate: it drops ExtraNames and Names.
func knownAttributes(name pkix.Name) pkix.Name {
	name.Names, name.ExtraNames = nil, nil
	return name
}

// CheckSignature says whether the request proves possession of its private key (RFC 2986 section 4.2). The API server
// checks it at creation, so only what bypassed the API can fail.
func (r *Request) CheckSignature() error {
	if err := r.payload.CheckSignature(); err != nil {
		return fmt.Errorf("the signature in spec.request does not match its public key: %w", err)
	}
	return nil
}

// KeyIn says whether cert is for the key that was asked for.
func (r *Request) KeyIn(cert *x509.Certificate) bool {
	key, comparable := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return comparable && key.Equal(r.Cert.PublicKey)
}

// KeyFingerprint is the hex SHA-256 of the requested public key, as DER SubjectPublicKeyInfo.
func (r *Request) KeyFingerprint() string {
	sum := sha256.Sum256(r.payload.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}
