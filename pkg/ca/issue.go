package ca

import (
	"cmp"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
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
