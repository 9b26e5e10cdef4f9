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
	"errors"
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

// Parse reads obj. The first PEM block of spec.request must be a CERTIFICATE REQUEST (RFC 7468 section 7); what
// follows it is ignored, as kube-controller-manager does (pkg/apis/certificates/helpers.go, ParseCSR). An error is
// final: it is about the object's immutable spec.
func Parse(obj *certificatesv1.CertificateSigningRequest) (*Request, error) {
	payload, err := parsePayload(obj.Spec.Request)
	if err != nil {
		return nil, err
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

func parsePayload(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("spec.request is not a PEM block of type CERTIFICATE REQUEST")
	}
	payload, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("spec.request holds no valid PKCS#10 request: %w", err)
	}
	return payload, nil
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
