package ca

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Request is the certificate as it would be issued. Rules judge the same value that the signer signs. Nothing outside
// of it can reach a certificate.
type Request struct {
	PublicKey      crypto.PublicKey
	Subject        pkix.Name
	DNSNames       []string
	EmailAddresses []string
	IPAddresses    []net.IP
	URIs           []*url.URL
	KeyUsage       x509.KeyUsage
	ExtKeyUsage    []x509.ExtKeyUsage
	// Lifetime is the requested lifetime, or zero if the request sets none.
	Lifetime time.Duration
}

// Issued is a certificate that Issue made.
type Issued struct {
	// PEM is the leaf and then its Chain, as CERTIFICATE blocks without headers.
	PEM    []byte
	Serial *big.Int
	// SHA256 is the digest of the leaf, in DER.
	SHA256    [sha256.Size]byte
	NotBefore time.Time
	NotAfter  time.Time
	// Cut is the time by which the expiry of the Authority shortens the certificate.
	Cut time.Duration
}

// Issue signs the leaf certificate of req, valid from Backdate before now. It tries each chain of the CA that is valid
// at now, the preferred one first, and returns the first leaf that x509.Certificate.Verify accepts with its chain. It
// does not repeat Profile.Check.
//
// A retry fails again after a *LintError, and after a *Violation by the name constraints of the CA. A retry after any
// other error may succeed. The error wraps ErrExpired if all chains have expired.
func (a *Authority) Issue(p Profile, req Request, now time.Time) (*Issued, error) {
	if p.config.Lifetime == 0 {
		return nil, errors.New("issue certificate: the Profile was not created with NewProfile")
	}
	if err := a.Usable(now); err != nil {
		return nil, err
	}
	var excluded, unfit error
	for _, path := range a.at(now) {
		issued, leaf, err := a.sign(path, p, req, now)
		if err != nil {
			return nil, err
		}
		refused := path.verify(leaf, now)
		invalid := x509.CertificateInvalidError{}
		switch {
		case refused == nil:
			return issued, nil
		case errors.As(refused, &invalid) && invalid.Reason == x509.CANotAuthorizedForThisName:
			excluded = path.violation(invalid)
		default:
			unfit = fmt.Errorf("verifiers would refuse the certificate with the chain of %q: %w", path.certs[0].Subject, refused)
		}
	}
	return nil, cmp.Or(unfit, excluded)
}

// sign signs the leaf certificate of req with the signing certificate of path. It returns it with its chain, and parsed.
func (a *Authority) sign(path path, p Profile, req Request, now time.Time) (*Issued, *x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, nil, fmt.Errorf("make serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               req.Subject,
		DNSNames:              req.DNSNames,
		EmailAddresses:        req.EmailAddresses,
		IPAddresses:           req.IPAddresses,
		URIs:                  req.URIs,
		KeyUsage:              req.KeyUsage,
		ExtKeyUsage:           req.ExtKeyUsage,
		BasicConstraintsValid: true,
		IsCA:                  false,
	}
	var cut time.Duration
	template.NotBefore, template.NotAfter, cut = path.validity(p.LifetimeOf(req.Lifetime), now)
	der, err := x509.CreateCertificate(rand.Reader, template, path.certs[0], req.PublicKey, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate: %w", err)
	}
	issued := &Issued{
		PEM:       append(encode(der), a.appended(path)...),
		Serial:    serial,
		SHA256:    sha256.Sum256(der),
		NotBefore: template.NotBefore,
		NotAfter:  template.NotAfter,
		Cut:       cut,
	}
	leaf, differences := path.lint(der, issued, p, req)
	if len(differences) > 0 {
		return nil, nil, &LintError{Serial: serial, Differences: differences}
	}
	return issued, leaf, nil
}

// validity returns when a certificate begins and ends, by the rule of Kubernetes
// pkg/controller/certificates/authority/policies.go. The backdating is part of a long lifetime and is added to a
// short one. No certificate outlives its chain: cut is the time by which the chain shortens it.
func (p path) validity(lifetime time.Duration, now time.Time) (notBefore, notAfter time.Time, cut time.Duration) {
	notBefore, notAfter = now.Add(-Backdate), now.Add(lifetime)
	if lifetime >= shortLived {
		notAfter = notAfter.Add(-Backdate)
	}
	if end := p.ends.NotAfter; !notAfter.Before(end) {
		notAfter, cut = end, notAfter.Sub(end)
	}
	return notBefore, notAfter, cut
}

// violation returns the Violation of a request that the name constraints of p exclude (RFC 5280 section 4.2.1.10).
func (p path) violation(invalid x509.CertificateInvalidError) *Violation {
	text := Shorten(invalid.Detail, maxSubjectText)
	for _, cert := range p.certs {
		permitted := slices.Concat(cert.PermittedDNSDomains, Texts(cert.PermittedIPRanges), cert.PermittedEmailAddresses, cert.PermittedURIDomains)
		if len(permitted) > 0 {
			text += fmt.Sprintf("; %q permits %s", cert.Subject, Shorten(fmt.Sprintf("%q", permitted), maxSubjectText))
			break
		}
	}
	return &Violation{Reason: "NameNotPermitted", Message: "the name constraints of the CA exclude the request: " + text}
}

// newSerial returns a random positive number of up to 128 bits (RFC 5280 section 4.1.2.2 allows 20 octets).
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, err
	}
	if serial.Sign() == 0 {
		return nil, errors.New("random source returned zero")
	}
	return serial, nil
}

// extensions lists the extensions that a leaf certificate may have, and whether they are critical. A subjectAltName
// is critical if the subject is empty (RFC 5280 section 4.2.1.6).
var extensions = map[string]bool{
	"2.5.29.15":       true, // keyUsage
	oidSubjectAltName: false,
	"2.5.29.19":       true, // basicConstraints
	oidAuthorityKeyID: false,
	"2.5.29.37":       false, // extKeyUsage
}

const oidSubjectAltName, oidAuthorityKeyID = "2.5.29.17", "2.5.29.35"

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
