// Package ca issues X.509 leaf certificates. It knows the standard library and nothing of Kubernetes, does no
// I/O and reads no clock: the instant is always an argument.
package ca

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrExpired is what Authority.Usable and Authority.Issue return, wrapped, once the signing certificate has run out.
var ErrExpired = errors.New("the signing certificate has expired")

// Authority is a signing certificate with its private key. It is immutable and safe for concurrent use; Load is the
// only way to get one, so that one that exists can sign.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// chain is cert and its issuers, as far as they are known; ends is the one of them that ends first.
	chain []*x509.Certificate
	ends  *x509.Certificate
	// appended is what Issue puts after a leaf, in PEM.
	appended []byte
	// given are all certificates that Load was given, in PEM.
	given []byte
}

// Load builds an Authority from PEM. certPEM may hold several certificates in any order; the one that signs is the one
// whose public key is that of keyPEM and that may sign certificates (RFC 5280 sections 4.2.1.3 and 4.2.1.9), and of
// several such the one that ends last. Its chain is built from the others of certPEM and from caPEM, the content of ca.crt;
// if that holds any certificate, the chain must end in one of it. Blocks of other types are passed over. Validity in time
// is not looked at here, see Usable, so that an expired CA can still be reported by name. It issues Intermediates, see
// WithChain.
func Load(certPEM, keyPEM []byte, caPEM ...[]byte) (*Authority, error) {
	key, err := parsePrivateKey(keyPEM)
	if err != nil {
		return nil, err
	}
	certs, err := ParseCertificates(certPEM)
	if err != nil {
		return nil, err
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM block of type CERTIFICATE found")
	}
	cert, err := signingCertificate(certs, key)
	if err != nil {
		return nil, err
	}
	anchors, err := ParseCertificates(bytes.Join(caPEM, nil))
	if err != nil {
		return nil, fmt.Errorf("ca.crt: %w", err)
	}
	chain, err := chainOf(cert, certs, anchors)
	if err != nil {
		return nil, err
	}
	ends := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	var given []byte
	for _, each := range slices.Concat(certs, anchors) {
		given = append(given, encode(each.Raw)...)
	}
	return (&Authority{cert: cert, key: key, chain: chain, ends: ends, given: given}).WithChain(Intermediates)
}

// ParseCertificates parses every CERTIFICATE block of data, in order, and passes over blocks of other types.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for i := 1; ; {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return certs, nil
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse certificate %d: %w", i, err)
		}
		certs = append(certs, cert)
		i++
	}
}

func signingCertificate(certs []*x509.Certificate, key crypto.Signer) (*x509.Certificate, error) {
	public, comparable := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !comparable {
		return nil, fmt.Errorf("a private key of type %T cannot sign certificates", key)
	}
	var best *x509.Certificate
	var unfit error
	for _, cert := range certs {
		if !public.Equal(cert.PublicKey) {
			continue
		}
		if err := maySign(cert); err != nil {
			unfit = err
			continue
		}
		if best == nil || cert.NotAfter.After(best.NotAfter) {
			best = cert
		}
	}
	switch {
	case best != nil:
		return best, nil
	case unfit != nil:
		return nil, unfit
	default:
		return nil, fmt.Errorf("the private key belongs to none of the %d certificate(s)", len(certs))
	}
}

func maySign(cert *x509.Certificate) error {
	if !cert.BasicConstraintsValid || !cert.IsCA {
		return fmt.Errorf("certificate %q is not a CA (basic constraints CA:TRUE missing, RFC 5280 section 4.2.1.9)", cert.Subject)
	}
	if cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return fmt.Errorf("certificate %q may not sign certificates (key usage keyCertSign missing, RFC 5280 section 4.2.1.3)", cert.Subject)
	}
	return nil
}

// Usable says whether the Authority may sign at now: nil, an error that wraps ErrExpired, or one that says from when on
// it will be valid. It goes for each certificate of its chain.
func (a *Authority) Usable(now time.Time) error {
	if !now.Before(a.ends.NotAfter) {
		expired := ErrExpired
		if a.ends != a.cert {
			expired = fmt.Errorf("%w with its issuer", ErrExpired)
		}
		return fmt.Errorf("%w: %q ended at %s", expired, a.ends.Subject, a.ends.NotAfter.Format(time.RFC3339))
	}
	for _, cert := range a.chain {
		if now.Before(cert.NotBefore) {
			return fmt.Errorf("the signing certificate %q is not valid before %s", cert.Subject, cert.NotBefore.Format(time.RFC3339))
		}
	}
	return nil
}

// Signed says whether the signing key has signed cert.
func (a *Authority) Signed(cert *x509.Certificate) bool {
	return cert.CheckSignatureFrom(a.cert) == nil
}

// NotAfter is the first end of a certificate in the chain; nothing that is issued lives longer.
func (a *Authority) NotAfter() time.Time { return a.ends.NotAfter }

// KeyID names the signing key in logs and metrics: the hex of the first eight bytes of the SHA-256 of its
// SubjectPublicKeyInfo, so that two certificates for one key share it.
func (a *Authority) KeyID() string {
	return KeyID(a.cert.RawSubjectPublicKeyInfo)
}

// KeyID is the short fingerprint of a DER SubjectPublicKeyInfo, see Authority.KeyID.
func KeyID(spki []byte) string {
	sum := sha256.Sum256(spki)
	return hex.EncodeToString(sum[:8])
}

// Certificate is the signing certificate, which nobody may change.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// CertificatePEM is the signing certificate as one PEM block.
func (a *Authority) CertificatePEM() []byte { return encode(a.cert.Raw) }

// AppendedPEM is what Issue puts after each leaf; empty is nothing.
func (a *Authority) AppendedPEM() []byte { return bytes.Clone(a.appended) }
