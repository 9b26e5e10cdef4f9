package ca

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
)

// Room for what a certificate holds beside names, key and issuer: a signature by an RSA key of 8,192 bits, and the fixed
// fields and extensions.
const (
	signatureRoom = 1024
	fixedRoom     = 1024
	// nameRoom is room for the tag and the length of a subjectAltName.
	nameRoom = 6
)

// LongestPEM returns a number of bytes that the PEM of the certificate that Issue makes of req does not exceed.
func (a *Authority) LongestPEM(req Request) int {
	der := signatureRoom + fixedRoom + len(a.cert.RawSubject) + len(a.cert.SubjectKeyId)
	if subject, err := asn1.Marshal(req.Subject.ToRDNSequence()); err == nil {
		der += len(subject)
	}
	if key, err := x509.MarshalPKIXPublicKey(req.PublicKey); err == nil {
		der += len(key)
	}
	for _, name := range req.DNSNames {
		der += nameRoom + len(name)
	}
	for _, name := range req.EmailAddresses {
		der += nameRoom + len(name)
	}
	for _, uri := range req.URIs {
		der += nameRoom + len(uri.String())
	}
	for _, address := range req.IPAddresses {
		der += nameRoom + len(address)
	}
	der += 12 * len(req.ExtKeyUsage)
	text := base64.StdEncoding.EncodedLen(der)
	return text + text/64 + 1 + len("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n") + len(a.appended)
}
