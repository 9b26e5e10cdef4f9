// Package ca issues X.509 leaf certificates. It imports the standard library and pkg/san, and nothing of Kubernetes.
// It does no I/O and reads no clock: the time is always an argument.
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

// ErrExpired is wrapped by errors of Authority.Usable and Authority.Issue after the signing certificate has expired.
var ErrExpired = errors.New("the signing certificate has expired")

// Authority is a signing certificate with its private key. It is immutable and safe for concurrent use. Only Load
// creates an Authority, so an Authority can always sign.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// chain is cert and its known issuers. ends is the certificate of chain that expires first.
	chain []*x509.Certificate
	ends  *x509.Certificate
	// appended is the PEM that Issue puts after a leaf.
	appended []byte
	// given are all certificates that Load was given.
	given []*x509.Certificate
}

// Load builds an Authority from PEM. certPEM may hold several certificates in any order. The signing certificate must
// have the public key of keyPEM and be permitted to sign certificates (RFC 5280 sections 4.2.1.3 and 4.2.1.9). If
// several certificates qualify, Load takes the one that expires last.
//
// Load builds the chain from the other certificates and from caPEM, the content of ca.crt. If caPEM holds
// certificates, the chain must end in one of them. Load ignores PEM blocks of other types. It does not check validity
// periods, so that an expired CA can still be reported by name: see Usable. The Authority issues Intermediates, see
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
	given := slices.Concat(certs, anchors)
	return (&Authority{cert: cert, key: key, chain: chain, ends: ends, given: given}).WithChain(Intermediates)
}

// ParseCertificates parses every CERTIFICATE block of data, in order, and ignores blocks of other types.
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
		return nil, fmt.Errorf("the private key does not match any of the %d certificate(s)", len(certs))
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
	if unknown := cert.UnhandledCriticalExtensions; len(unknown) > 0 {
		return fmt.Errorf("certificate %q has critical extensions that verifiers do not know: %v (RFC 5280 section 4.2)",
			cert.Subject, unknown)
	}
	return nil
}

// Usable returns nil if every certificate of the chain is valid at now. If one has expired, the error wraps ErrExpired.
func (a *Authority) Usable(now time.Time) error {
	if !now.Before(a.ends.NotAfter) {
		issuer := ""
		if a.ends != a.cert {
			issuer = "its issuer "
		}
		return fmt.Errorf("%w: %s%q expired at %s",
			ErrExpired, issuer, a.ends.Subject, a.ends.NotAfter.Format(time.RFC3339))
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

// NotAfter returns the earliest expiry of a certificate in the chain. No issued certificate is valid longer.
func (a *Authority) NotAfter() time.Time { return a.ends.NotAfter }

// KeyID returns the name of the signing key in logs and metrics. Two certificates for one key have the same KeyID.
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

// AppendedPEM returns the certificates that Issue puts after each leaf.
func (a *Authority) AppendedPEM() []byte { return bytes.Clone(a.appended) }

// Chain selects the certificates that Issue puts after the leaf.
type Chain string

// The chains. The zero value is Intermediates.
const (
	// Intermediates are the signing certificate and its known issuers, without a self-signed certificate. Verifiers
	// already have the self-signed one (RFC 8446 section 4.4.2).
	Intermediates Chain = "Intermediates"
	// None is the leaf alone, as kube-controller-manager issues it.
	None Chain = "None"
	// WithRoot is Intermediates and then the self-signed certificate, which must be known.
	WithRoot Chain = "WithRoot"
)

// Chains returns all chains, the default first.
func Chains() []Chain { return []Chain{Intermediates, None, WithRoot} }

// WithChain returns a copy of a that issues chain. It fails if chain needs a root that Load was not given.
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
			return nil, fmt.Errorf("the chain must end with its root, but ends with %q: add the certificate of its issuer %q",
				last.Subject, last.Issuer)
		}
	default:
		return nil, fmt.Errorf("unknown chain %q", chain)
	}
	with := *a
	with.appended = nil
	for _, cert := range a.chain[:end] {
		with.appended = append(with.appended, encode(cert.Raw)...)
	}
	return &with, nil
}

// Given returns every certificate that Load was given, in the chain or not. The holder of a leaf can append any of them.
// Callers must not change them.
func (a *Authority) Given() []*x509.Certificate { return slices.Clone(a.given) }

// chainOf returns the shortest chain from cert to a certificate in anchors. It verifies that each certificate issued
// the one before it. Without anchors the chain ends in a self-signed certificate, or in the last one whose issuer is
// unknown. Certificates outside the chain are ignored. If a certificate has the name of an issuer but did not sign,
// chainOf fails, unless another certificate with that name signed. chainOf does not check validity periods.
func chainOf(cert *x509.Certificate, certs, anchors []*x509.Certificate) ([]*x509.Certificate, error) {
	known := slices.Concat(certs, anchors)
	seen := []*x509.Certificate{cert}
	chains := [][]*x509.Certificate{{cert}}
	var chain []*x509.Certificate
	for i := 0; i < len(chains); i++ { // breadth first, so that the first complete chain is a shortest one
		chain = chains[i]
		if complete(chain, anchors) {
			return chain, nil
		}
		issuers, err := issuersOf(chain, known)
		if err != nil {
			return nil, err
		}
		for _, issuer := range issuers {
			if !slices.ContainsFunc(seen, issuer.Equal) {
				seen, chains = append(seen, issuer), append(chains, append(slices.Clone(chain), issuer))
			}
		}
	}
	if last := chain[len(chain)-1]; len(anchors) > 0 {
		return nil, fmt.Errorf("the chain does not end in a certificate of ca.crt: the issuer %q of %q is missing",
			last.Issuer, last.Subject)
	}
	return chain, nil
}

// complete reports whether chain ends in one of anchors, by name and key. Without anchors it reports whether chain ends
// in a self-signed certificate.
func complete(chain, anchors []*x509.Certificate) bool {
	last := chain[len(chain)-1]
	if len(anchors) == 0 {
		return selfSigned(last)
	}
	return slices.ContainsFunc(anchors, func(anchor *x509.Certificate) bool {
		return bytes.Equal(anchor.RawSubject, last.RawSubject) &&
			bytes.Equal(anchor.RawSubjectPublicKeyInfo, last.RawSubjectPublicKeyInfo)
	})
}

// issuersOf returns the certificates in known that issued the last certificate of chain. It fails if a certificate has
// the issuer's name but none of them may continue chain.
func issuersOf(chain, known []*x509.Certificate) (found []*x509.Certificate, err error) {
	last := chain[len(chain)-1]
	if selfSigned(last) {
		return nil, nil
	}
	for _, issuer := range known {
		if !bytes.Equal(issuer.RawSubject, last.RawIssuer) || issuer.Equal(last) {
			continue
		}
		if wrong := last.CheckSignatureFrom(issuer); wrong != nil {
			err = fmt.Errorf("certificate %q is not signed by the given %q: %w", last.Subject, issuer.Subject, wrong)
		} else if issuer.MaxPathLen >= 0 && len(chain) > issuer.MaxPathLen {
			err = fmt.Errorf("certificate %q permits %d certificates between itself and a leaf, and there are %d "+
				"(path length, RFC 5280 section 4.2.1.9)", issuer.Subject, issuer.MaxPathLen, len(chain))
		} else {
			found = append(found, issuer)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, err
}

// selfSigned reports whether cert is its own issuer.
func selfSigned(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawSubject, cert.RawIssuer) &&
		cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
}

// parsePrivateKey returns the first private key in data: PKCS#1 (RFC 8017), SEC 1 (RFC 5915) or PKCS#8 (RFC 5958).
// Other blocks, such as EC PARAMETERS or certificates, may come before it. Errors never contain bytes of the key.
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

// parseKeyBlock tries every encoding, because the block's label is often wrong. It returns nil if none fits.
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
