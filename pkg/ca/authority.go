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
	"strings"
	"time"
)

// ErrExpired is wrapped by the errors of Authority.Usable and Authority.Issue once the signing certificate has expired.
var ErrExpired = errors.New("the signing certificate has expired")

// Authority is a signing certificate with its private key. It is immutable and safe for concurrent use. Only Load makes
// one, so an Authority can always sign.
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

// Load builds an Authority from PEM. certPEM may hold several certificates in any order. The signing certificate has
// the public key of keyPEM and may sign certificates (RFC 5280 sections 4.2.1.3 and 4.2.1.9); of several, the one that
// ends last. Its chain is built from the others and from caPEM, the content of ca.crt. If caPEM holds certificates, the
// chain must end in one of them. Blocks of other types are ignored. Load does not check the validity in time, so that
// an expired CA can still be reported by name: see Usable. The Authority issues Intermediates, see WithChain.
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
		return fmt.Errorf("certificate %q is not a CA (basic constraints CA:TRUE missing, RFC 5280 section 4.2.1.9)",
			cert.Subject)
	}
	if cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return fmt.Errorf("certificate %q may not sign certificates "+
			"(key usage keyCertSign missing, RFC 5280 section 4.2.1.3)", cert.Subject)
	}
	return nil
}

// Usable returns nil if every certificate of the chain is valid at now. If one has expired, the error wraps ErrExpired.
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
			return fmt.Errorf("the signing certificate %q is not valid before %s",
				cert.Subject, cert.NotBefore.Format(time.RFC3339))
		}
	}
	return nil
}

// Signed reports whether the signing key has signed cert.
func (a *Authority) Signed(cert *x509.Certificate) bool {
	return cert.CheckSignatureFrom(a.cert) == nil
}

// NotAfter returns the earliest end of a certificate in the chain. No issued certificate lives longer.
func (a *Authority) NotAfter() time.Time { return a.ends.NotAfter }

// KeyID names the signing key in logs and metrics. Two certificates for one key share it.
func (a *Authority) KeyID() string { return KeyID(a.cert.RawSubjectPublicKeyInfo) }

// KeyID returns the hex of the first eight bytes of the SHA-256 of a DER SubjectPublicKeyInfo.
func KeyID(spki []byte) string {
	sum := sha256.Sum256(spki)
	return hex.EncodeToString(sum[:8])
}

// Certificate returns the signing certificate. Callers must not change it.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// CertificatePEM returns the signing certificate as one PEM block.
func (a *Authority) CertificatePEM() []byte { return encode(a.cert.Raw) }

// AppendedPEM returns what Issue puts after each leaf.
func (a *Authority) AppendedPEM() []byte { return bytes.Clone(a.appended) }

// Chain says which certificates Issue puts after the leaf.
type Chain string

// The chains. The zero value is Intermediates.
const (
	// Intermediates are the signing certificate and its issuers, as far as they are known, but never one that is
	// self-signed: those who verify have that one already (RFC 8446 section 4.4.2).
	Intermediates Chain = "Intermediates"
	// None is the leaf alone, as of kube-controller-manager.
	None Chain = "None"
	// WithRoot is Intermediates and then the self-signed one, which must be known.
	WithRoot Chain = "WithRoot"
)

// Chains are all of them, the default first.
func Chains() []Chain { return []Chain{Intermediates, None, WithRoot} }

// WithChain returns an Authority like a that issues chain. It fails when chain wants a root that Load was not given.
func (a *Authority) WithChain(chain Chain) (*Authority, error) {
	end := len(a.chain)
	last := a.chain[end-1]
	switch chain {
	case "", Intermediates:
		if selfSigned(last) {
			end--
		}
	case None:
		end = 0
	case WithRoot:
		if !selfSigned(last) {
			return nil, fmt.Errorf("the chain is to end with its root, but ends with %q, whose issuer %q is not given",
				last.Subject, last.Issuer)
		}
	default:
		return nil, fmt.Errorf("no such chain: %q", chain)
	}
	with := *a
	with.appended = nil
	for _, cert := range a.chain[:end] {
		with.appended = append(with.appended, encode(cert.Raw)...)
	}
	return &with, nil
}

// WithAllGiven returns an Authority like a that puts every certificate that Load was given after a leaf. A verifier
// that trusts any of them then finds its way, whichever chain is configured: the holder of a leaf can append them too.
func (a *Authority) WithAllGiven() *Authority {
	with := *a
	with.appended = a.given
	return &with
}

// path is a certificate on the way up from the signing one, with what is below it.
type path struct {
	cert  *x509.Certificate
	below *path
	depth int // certificates below
}

// chainOf returns the shortest way from cert up to one of anchors, over certs, each verified to have issued the one
// before. Without anchors it is the way to a self-signed one, or else as far as it goes. What has no place in it is
// passed over, but an issuer by name that has not signed is an error, unless another one has. Validity in time is not
// looked at.
func chainOf(cert *x509.Certificate, certs, anchors []*x509.Certificate) ([]*x509.Certificate, error) {
	known := slices.Concat(certs, anchors)
	seen := []*x509.Certificate{cert}
	next := []*path{{cert: cert}}
	for i := 0; i < len(next); i++ { // breadth first, so that the first way is a shortest
		at := next[i]
		if at.ends(anchors) {
			return at.certs(), nil
		}
		issuers, err := at.issuers(known)
		if err != nil {
			return nil, err
		}
		for _, issuer := range issuers {
			if !slices.ContainsFunc(seen, issuer.Equal) {
				seen, next = append(seen, issuer), append(next, &path{issuer, at, at.depth + 1})
			}
		}
	}
	last := next[len(next)-1]
	if len(anchors) > 0 {
		return nil, fmt.Errorf("the chain does not end in a certificate of ca.crt: the issuer %q of %q is not there",
			last.cert.Issuer, last.cert.Subject)
	}
	return last.certs(), nil
}

// ends reports whether p.cert is one of anchors, by name and key. Without anchors it reports whether p.cert is
// self-signed.
func (p *path) ends(anchors []*x509.Certificate) bool {
	if len(anchors) == 0 {
		return selfSigned(p.cert)
	}
	return slices.ContainsFunc(anchors, func(anchor *x509.Certificate) bool {
		return bytes.Equal(anchor.RawSubject, p.cert.RawSubject) &&
			bytes.Equal(anchor.RawSubjectPublicKeyInfo, p.cert.RawSubjectPublicKeyInfo)
	})
}

// issuers returns those of known that have issued p.cert. It is an error if a certificate has the name of the issuer
// but none has signed p.cert.
func (p *path) issuers(known []*x509.Certificate) ([]*x509.Certificate, error) {
	if selfSigned(p.cert) {
		return nil, nil
	}
	var found []*x509.Certificate
	var wrong error
	for _, issuer := range known {
		if !bytes.Equal(issuer.RawSubject, p.cert.RawIssuer) || issuer.Equal(p.cert) {
			continue
		}
		if err := p.issuedBy(issuer); err != nil {
			wrong = err
		} else {
			found = append(found, issuer)
		}
	}
	if len(found) > 0 {
		wrong = nil
	}
	return found, wrong
}

// issuedBy returns why issuer, whose name is right, can't be above p, or nil.
func (p *path) issuedBy(issuer *x509.Certificate) error {
	if err := p.cert.CheckSignatureFrom(issuer); err != nil {
		return fmt.Errorf("certificate %q is not signed by the given %q: %w", p.cert.Subject, issuer.Subject, err)
	}
	if issuer.MaxPathLen >= 0 && p.depth >= issuer.MaxPathLen {
		return fmt.Errorf("certificate %q permits %d certificates between itself and a leaf, and there are %d "+
			"(path length, RFC 5280 section 4.2.1.9)", issuer.Subject, issuer.MaxPathLen, p.depth+1)
	}
	return nil
}

// certs returns the certificates from the signing certificate up to p.
func (p *path) certs() []*x509.Certificate {
	var certs []*x509.Certificate
	for ; p != nil; p = p.below {
		certs = append(certs, p.cert)
	}
	slices.Reverse(certs)
	return certs
}

// selfSigned reports whether cert is its own issuer.
func selfSigned(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawSubject, cert.RawIssuer) &&
		cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
}

// parsePrivateKey returns the first private key in data: PKCS#1 (RFC 8017), SEC 1 (RFC 5915) or PKCS#8 (RFC 5958).
// Other blocks, such as EC PARAMETERS or certificates, may stand before it. Key bytes never reach an error.
func parsePrivateKey(data []byte) (crypto.Signer, error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil, errors.New("no private key found: " +
				"want a PEM block of type PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY")
		}
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		if strings.HasPrefix(block.Type, "ENCRYPTED") || block.Headers["DEK-Info"] != "" {
			return nil, errors.New("the private key is encrypted: store it without a passphrase")
		}
		key := parseKeyBlock(block.Bytes)
		if key == nil {
			return nil, fmt.Errorf("PEM block of type %s holds no private key in PKCS#1, PKCS#8 or SEC 1", block.Type)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("a private key of type %T cannot sign", key)
		}
		return signer, nil
	}
}

// parseKeyBlock tries every encoding, as the label of the block is often wrong, or returns nil.
func parseKeyBlock(der []byte) any {
	if key, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		return key
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key
	}
	return nil
}
