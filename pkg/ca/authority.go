// Package ca issues X.509 leaf certificates. It imports the standard library and pkg/san, and nothing of Kubernetes.
// It does no I/O and reads no clock: the time is always an argument.
package ca

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
)

// ErrExpired is wrapped by errors of Authority.Usable and Authority.Issue after the last chain of the CA has expired.
var ErrExpired = errors.New("the signing certificate has expired")

// Authority is a signing key with its certificates and their chains. It is immutable and safe for concurrent use. Only
// Load creates an Authority, so an Authority can always sign.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// paths are all chains of the certificates of key, the preferred one first. There is at least one.
	paths []path
	chain Chain
	given []*x509.Certificate
	// unread reports that Load ignored a certificate that it could not read.
	unread bool
}

// Load builds an Authority from PEM. certPEM may hold several certificates in any order, also several of the public key
// of keyPEM. The other certificates, and those of caPEM, the content of ca.crt, complete the chains. Each chain is one
// that x509.Certificate.Verify accepts at some time. It ends in a certificate of caPEM. Without caPEM it ends in a
// self-signed certificate or, if no such chain is valid, in a certificate whose issuer was not given.
//
// Load does not read the clock: a CA that has expired, or that is not valid yet, is an Authority too, see Usable. Load
// ignores certificates outside of the chains, and PEM blocks of other types. It fails if a certificate is damaged, or if
// caPEM is not nil and holds no certificate. It ignores a certificate that crypto/x509 refuses but other programs may
// accept, see Unread. The Authority issues Intermediates, see WithChain.
func Load(certPEM, keyPEM, caPEM []byte) (*Authority, error) {
	key, err := parsePrivateKey(keyPEM)
	if err != nil {
		return nil, err
	}
	certs, refused, err := readCertificates(certPEM)
	if err != nil {
		return nil, err
	}
	if len(certs) == 0 {
		return nil, errors.Join(errors.New("no PEM block of type CERTIFICATE found"), refused)
	}
	anchors, unread, err := readCertificates(caPEM)
	if err == nil && len(anchors) == 0 && caPEM != nil {
		err = errors.Join(errors.New("it holds no certificate: remove it, or correct its PEM"), unread)
	}
	if err != nil {
		return nil, fmt.Errorf("ca.crt: %w", err)
	}
	refused = errors.Join(refused, unread)
	signing, err := signingCertificates(slices.Concat(certs, anchors), key)
	if err != nil {
		return nil, errors.Join(err, refused)
	}
	paths, err := findPaths(key, signing, certs, anchors)
	if err != nil {
		return nil, err
	}
	last := slices.MaxFunc(paths, func(a, b path) int { return a.certs[0].NotAfter.Compare(b.certs[0].NotAfter) })
	return &Authority{
		cert: last.certs[0], key: key, paths: paths, chain: Intermediates, given: slices.Concat(certs, anchors), unread: refused != nil,
	}, nil
}

// ParseCertificates parses every CERTIFICATE block of data, in order, and ignores blocks of other types. As API servers do
// (k8s.io/client-go/util/cert, ParseCertsPEM), it fails if crypto/x509 refuses a certificate, and skips a block whose PEM
// is damaged.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	certs, refused, _, err := parseCertificates(data)
	if err := cmp.Or(err, refused); err != nil {
		return nil, err
	}
	return certs, nil
}

// readCertificates parses data like ParseCertificates, but fails if the PEM of a block is damaged. refused says why it
// ignores a certificate that is not damaged.
func readCertificates(data []byte) (certs []*x509.Certificate, refused, err error) {
	certs, refused, blocks, err := parseCertificates(data)
	if all := max(bytes.Count(data, []byte("BEGIN CERTIFICATE-")), bytes.Count(data, []byte("END CERTIFICATE-"))); err == nil && blocks < all {
		err = fmt.Errorf("%d of %d PEM blocks of type CERTIFICATE are damaged: look for a changed line, "+
			"a missing line break or a byte order mark", all-blocks, all)
	}
	return certs, refused, err
}

// parseCertificates parses the blocks that pem.Decode does not skip. refused says which certificates crypto/x509 refuses,
// although they are not damaged. blocks counts the blocks of type CERTIFICATE.
func parseCertificates(data []byte) (certs []*x509.Certificate, refused error, blocks int, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			if strings.HasSuffix(block.Type, "CERTIFICATE") { // as OpenSSL's TRUSTED CERTIFICATE
				refused = errors.Join(refused, fmt.Errorf("a PEM block of type %s is not read: convert it to CERTIFICATE", block.Type))
			}
			continue
		}
		blocks++
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err == nil:
			certs = append(certs, cert)
		case wellFormed(block.Bytes):
			refused = errors.Join(refused, fmt.Errorf("parse certificate %d: %w", blocks, err))
		default:
			return nil, nil, 0, fmt.Errorf("parse certificate %d: %w", blocks, err)
		}
	}
	return certs, refused, blocks, nil
}

// wellFormed reports whether der has the fields of a certificate (RFC 5280 section 4.1), whatever their values.
func wellFormed(der []byte) bool {
	var form struct {
		TBS struct {
			Version                                         int `asn1:"optional,explicit,default:0,tag:0"`
			Serial                                          *big.Int
			Algorithm, Issuer, Validity, Subject, PublicKey asn1.RawValue
		}
		Algorithm asn1.RawValue
		Signature asn1.BitString
	}
	rest, err := asn1.Unmarshal(der, &form)
	return err == nil && len(rest) == 0
}

// signingCertificates returns those of certs that have the public key of key and may sign certificates, or why there is
// none.
func signingCertificates(certs []*x509.Certificate, key crypto.Signer) (fit []*x509.Certificate, unfit error) {
	public, comparable := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !comparable {
		return nil, fmt.Errorf("a private key of type %T cannot sign certificates", key)
	}
	for _, cert := range certs {
		if !public.Equal(cert.PublicKey) {
			continue
		}
		if err := checkSigning(cert); err != nil {
			unfit = err
		} else {
			fit = append(fit, cert)
		}
	}
	switch {
	case len(fit) > 0:
		return fit, nil
	case unfit != nil:
		return nil, unfit
	default:
		return nil, fmt.Errorf("the private key does not match any of the %d certificate(s)", len(certs))
	}
}

// checkSigning returns why verifiers refuse certificates that are signed with cert, or nil. It explains what
// x509.Certificate.Verify decides. A certificate of version 1 has no extensions, and is accepted as a root.
func checkSigning(cert *x509.Certificate) error {
	if cert.Version >= 3 && (!cert.BasicConstraintsValid || !cert.IsCA) {
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

// Usable returns nil if a chain of the CA is valid at now. If all have expired, the error wraps ErrExpired.
func (a *Authority) Usable(now time.Time) error {
	best := a.at(now)[0]
	issuer := ""
	if best.ends != best.certs[0] {
		issuer = "its issuer "
	}
	switch {
	case !now.Before(best.ends.NotAfter):
		return fmt.Errorf("%w: %s%q expired at %s",
			ErrExpired, issuer, best.ends.Subject, best.ends.NotAfter.Format(time.RFC3339))
	case now.Before(best.begins.NotBefore):
		return fmt.Errorf("the signing certificate %q is not valid before %s",
			best.begins.Subject, best.begins.NotBefore.Format(time.RFC3339))
	}
	return nil
}

// at returns the chains that are valid at now, the preferred one first. If there is none, it returns the one that is
// valid next, otherwise the one that was valid last.
func (a *Authority) at(now time.Time) []path {
	var valid, later []path
	for _, path := range a.paths {
		switch {
		case now.Before(path.begins.NotBefore):
			later = append(later, path)
		case now.Before(path.ends.NotAfter):
			valid = append(valid, path)
		}
	}
	if len(valid) > 0 {
		return valid
	}
	if len(later) > 0 {
		return []path{slices.MinFunc(later, func(a, b path) int { return a.begins.NotBefore.Compare(b.begins.NotBefore) })}
	}
	return []path{slices.MaxFunc(a.paths, func(a, b path) int { return a.ends.NotAfter.Compare(b.ends.NotAfter) })}
}

// Signed reports whether the signing key has signed cert.
func (a *Authority) Signed(cert *x509.Certificate) bool {
	return cert.CheckSignatureFrom(a.cert) == nil
}

// NotAfter returns the end of the chain that Issue prefers at now: the earliest expiry of its certificates.
func (a *Authority) NotAfter(now time.Time) time.Time { return a.at(now)[0].ends.NotAfter }

// KeyID returns the name of the signing key in logs and metrics. Two certificates for one key have the same KeyID.
func (a *Authority) KeyID() string { return KeyID(a.cert.RawSubjectPublicKeyInfo) }

// KeyID returns the hex of the first eight bytes of the SHA-256 of a DER SubjectPublicKeyInfo.
func KeyID(spki []byte) string {
	sum := sha256.Sum256(spki)
	return hex.EncodeToString(sum[:8])
}

// Certificate returns the signing certificate, of several the one that expires last. It is the same at any time. Callers
// must not change it.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// CertificatePEM returns Certificate as one PEM block.
func (a *Authority) CertificatePEM() []byte { return encode(a.cert.Raw) }

// AppendedPEM returns the certificates that Issue puts after a leaf with the chain that it prefers at now.
func (a *Authority) AppendedPEM(now time.Time) []byte { return a.appended(a.at(now)[0]) }

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
	with := *a
	with.chain = cmp.Or(chain, Intermediates)
	if !slices.Contains(Chains(), with.chain) {
		return nil, fmt.Errorf("unknown chain %q", chain)
	}
	if chain == WithRoot {
		with.paths = slices.DeleteFunc(slices.Clone(a.paths), func(p path) bool { return !p.selfSigned })
	}
	if len(with.paths) == 0 {
		last := a.paths[0].certs[len(a.paths[0].certs)-1]
		return nil, fmt.Errorf("the chain must end with its root, but ends with %q: add the certificate of its issuer %q",
			last.Subject, last.Issuer)
	}
	return &with, nil
}

// appended returns the certificates of p that Issue puts after a leaf.
func (a *Authority) appended(p path) (pem []byte) {
	certs := p.certs
	switch {
	case a.chain == None:
		certs = nil
	case a.chain == Intermediates && p.selfSigned:
		certs = certs[:len(certs)-1]
	}
	for _, cert := range certs {
		pem = append(pem, encode(cert.Raw)...)
	}
	return pem
}

// Given returns every certificate that Load was given, in a chain or not. The holder of a leaf can append any of them.
// Callers must not change them.
func (a *Authority) Given() []*x509.Certificate { return slices.Clone(a.given) }

// Unread reports whether Load was given a certificate that it could not read, for example one with a negative serial
// number. Programs that read it may find more chains than Given shows.
func (a *Authority) Unread() bool { return a.unread }

// parsePrivateKey returns the first private key in data: PKCS#1 (RFC 8017), SEC 1 (RFC 5915) or PKCS#8 (RFC 5958).
// Other blocks, such as EC PARAMETERS or certificates, may come before it. Of an ML-DSA key it reads the seed alone (RFC 9881
// section 6), as crypto/x509 does. Errors never contain bytes of the key.
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
		key, why := parseKeyBlock(block.Bytes)
		switch text := fmt.Sprint(why); {
		case strings.Contains(text, "mldsa: unavailable"):
			return nil, fmt.Errorf("the private key can't be read: %w", why)
		case strings.Contains(text, "ML-DSA"):
			return nil, errors.New("the private key can't be read: of an ML-DSA key, crypto/x509 reads the seed alone: convert it with " +
				`"openssl pkey -provparam ml-dsa.output_formats=seed-only", or make another key if it holds no seed`)
		case why != nil:
			return nil, fmt.Errorf("PEM block of type %s holds no private key in PKCS#1, PKCS#8 or SEC 1", block.Type)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("a private key of type %T cannot sign", key)
		}
		return signer, nil
	}
}

// parseKeyBlock tries every encoding, because the block's label is often wrong. If none fits, it returns the error of PKCS#8.
func parseKeyBlock(der []byte) (key any, err error) {
	if key, err = x509.ParsePKCS8PrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	return nil, err
}
