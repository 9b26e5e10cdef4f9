package ca

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
)

// extensions lists the extensions that a leaf certificate may have, and whether they are critical. A subjectAltName
// is critical if the subject is empty (RFC 5280 section 4.2.1.6).
var extensions = map[string]bool{
	"2.5.29.15":       true, // keyUsage
	oidSubjectAltName: false,
	"2.5.29.19":       true,  // basicConstraints
	"2.5.29.35":       false, // authorityKeyIdentifier
	"2.5.29.37":       false, // extKeyUsage
}

const oidSubjectAltName = "2.5.29.17"

// LintError reports that Issue made a certificate that differs from the judged Request. Issue does not return this
// certificate.
type LintError struct {
	Serial      *big.Int
	Differences []string
}

func (e *LintError) Error() string {
	return "the issued certificate differs from the judged request: " + strings.Join(e.Differences, "; ")
}

// lint parses the finished certificate and compares each field with req, with issued and with the chain. It returns all
// differences.
func (p path) lint(der []byte, issued *Issued, profile Profile, req Request) (cert *x509.Certificate, found []string) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, []string{fmt.Sprintf("it can't be parsed: %v", err)}
	}
	issuer := p.certs[0]
	found = foreignExtensions(cert)
	differ := func(same bool, field string, got, want any) {
		if !same {
			found = append(found, fmt.Sprintf("%s is %v, want %v", field, got, want))
		}
	}
	compare := func(field, got, want string) {
		differ(got == want, field, Shorten(got, maxSubjectText), Shorten(want, maxSubjectText))
	}
	subject := req.Subject
	subject.ExtraNames = nil // no rule judges them
	judged, err := asn1.Marshal(subject.ToRDNSequence())
	differ(err == nil && bytes.Equal(cert.RawSubject, judged),
		"subject", SubjectText(cert.Subject, maxSubjectText), "the judged "+SubjectText(subject, maxSubjectText))
	compare("DNS name", fmt.Sprintf("%+q", cert.DNSNames), fmt.Sprintf("%+q", req.DNSNames))
	compare("email address", fmt.Sprintf("%+q", cert.EmailAddresses), fmt.Sprintf("%+q", req.EmailAddresses))
	compare("IP address", fmt.Sprint(cert.IPAddresses), fmt.Sprint(req.IPAddresses))
	compare("URI", fmt.Sprintf("%+q", cert.URIs), fmt.Sprintf("%+q", req.URIs))
	differ(cert.Version == 3, "version", cert.Version, 3)
	differ(cert.SerialNumber.Cmp(issued.Serial) == 0, "serial", cert.SerialNumber.Text(16), issued.Serial.Text(16))
	differ(bytes.Equal(cert.RawIssuer, issuer.RawSubject), "issuer", cert.Issuer, issuer.Subject)
	differ(len(cert.AuthorityKeyId) == 0 || bytes.Equal(cert.AuthorityKeyId, issuer.SubjectKeyId),
		"authority key identifier", cert.AuthorityKeyId, issuer.SubjectKeyId)
	key, err := x509.MarshalPKIXPublicKey(req.PublicKey)
	differ(err == nil && bytes.Equal(key, cert.RawSubjectPublicKeyInfo),
		"key", KeyID(cert.RawSubjectPublicKeyInfo), KeyID(key))
	differ(cert.KeyUsage == req.KeyUsage, "key usage", cert.KeyUsage, req.KeyUsage)
	differ(slices.Equal(cert.ExtKeyUsage, req.ExtKeyUsage) && len(cert.UnknownExtKeyUsage) == 0, "extended key usage",
		fmt.Sprint(cert.ExtKeyUsage, cert.UnknownExtKeyUsage), req.ExtKeyUsage)
	differ(cert.BasicConstraintsValid && !cert.IsCA, "CA", cert.IsCA, false)
	differ(cert.NotBefore.Equal(issued.NotBefore.Truncate(time.Second)), "begin", cert.NotBefore, issued.NotBefore)
	differ(cert.NotAfter.Equal(issued.NotAfter.Truncate(time.Second)), "end", cert.NotAfter, issued.NotAfter)
	differ(!cert.NotAfter.After(p.ends.NotAfter), "end", cert.NotAfter, "not after the end of the CA")
	longest := profile.config.MaxLifetime + Backdate
	differ(cert.NotAfter.Sub(cert.NotBefore) <= longest,
		"lifetime", cert.NotAfter.Sub(cert.NotBefore), fmt.Sprintf("at most %s", longest))
	return cert, found
}

// foreignExtensions lists each extension that is missing from extensions or has the wrong critical bit.
func foreignExtensions(cert *x509.Certificate) []string {
	var found []string
	for _, got := range cert.Extensions {
		id := got.Id.String()
		critical, known := extensions[id]
		if id == oidSubjectAltName {
			critical = len(cert.Subject.Names) == 0
		}
		if !known || got.Critical != critical {
			found = append(found, fmt.Sprintf("extension %s, critical %t, is not permitted", id, got.Critical))
		}
	}
	return found
}
