package parity

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

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
