package ca

import (
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

// Issue signs the leaf certificate of req, valid from Backdate before now. It does not repeat Profile.Check. A retry
// after a *LintError fails again. A retry after any other error may succeed. The error wraps ErrExpired if the
// Authority has expired.
func (a *Authority) Issue(p Profile, req Request, now time.Time) (*Issued, error) {
	if p.config.Lifetime == 0 {
		return nil, errors.New("issue certificate: the Profile was not created with NewProfile")
	}
	if err := a.Usable(now); err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
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
	template.NotBefore, template.NotAfter, cut = a.validity(p.LifetimeOf(req.Lifetime), now)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, req.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	issued := &Issued{
		PEM:       append(encode(der), a.appended...),
		Serial:    serial,
		SHA256:    sha256.Sum256(der),
		NotBefore: template.NotBefore,
		NotAfter:  template.NotAfter,
		Cut:       cut,
	}
	if differences := a.lint(der, issued, p, req); len(differences) > 0 {
		return nil, &LintError{Serial: serial, Differences: differences}
	}
	return issued, nil
}

// NotAfterOf returns the expiry of the certificate that Issue would make with the same arguments.
func (a *Authority) NotAfterOf(p Profile, req Request, now time.Time) time.Time {
	_, notAfter, _ := a.validity(p.LifetimeOf(req.Lifetime), now)
	return notAfter
}

// validity returns when a certificate begins and ends, by the rule of Kubernetes
// pkg/controller/certificates/authority/policies.go. The backdating is part of a long lifetime and is added to a
// short one. No certificate outlives the Authority's chain: cut is the time by which the chain shortens it.
func (a *Authority) validity(lifetime time.Duration, now time.Time) (notBefore, notAfter time.Time, cut time.Duration) {
	notBefore, notAfter = now.Add(-Backdate), now.Add(lifetime)
	if lifetime >= shortLived {
		notAfter = notAfter.Add(-Backdate)
	}
	if !notAfter.Before(a.ends.NotAfter) {
		cut = notAfter.Sub(a.ends.NotAfter)
		notAfter = a.ends.NotAfter
	}
	return notBefore, notAfter, cut
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
