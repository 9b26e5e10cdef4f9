package ca

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Algorithm is a kind of key, named as in a Pod's certificate projection (k8s.io/api/core/v1,
// PodCertificateProjection.KeyType).
type Algorithm string

// The algorithms of keys that New makes.
const (
	ECDSAP256 Algorithm = "ECDSAP256"
	ECDSAP384 Algorithm = "ECDSAP384"
	RSA3072   Algorithm = "RSA3072"
	RSA4096   Algorithm = "RSA4096"
	ED25519   Algorithm = "ED25519"
	MLDSA44   Algorithm = "MLDSA44" // FIPS 204, as the next two
	MLDSA65   Algorithm = "MLDSA65"
	MLDSA87   Algorithm = "MLDSA87"
)

// Algorithms returns all algorithms, the default first.
func Algorithms() []Algorithm {
	return []Algorithm{ECDSAP256, ECDSAP384, RSA3072, RSA4096, ED25519, MLDSA44, MLDSA65, MLDSA87}
}

// Check returns why New can't make a key of the algorithm, or nil. The algorithm may be unknown, or this program may have a
// FIPS 140-3 module without it.
func (a Algorithm) Check() error {
	if slices.Contains([]Algorithm{"", ECDSAP256, ECDSAP384, RSA3072, RSA4096, ED25519}, a) {
		return nil
	}
	_, _, err := newKey(a) // takes less than a millisecond
	return err
}

// DefaultAuthorityLifetime is the lifetime of a new CA if none is configured: ten years, as in kubeadm.
const DefaultAuthorityLifetime = 10 * 365 * 24 * time.Hour

// maxCommonName is X.520's bound, in letters (RFC 5280 appendix A.1, ub-common-name).
const maxCommonName = 64

// NewOptions configures New.
type NewOptions struct {
	// CommonName is the whole subject, of 1 to 64 letters.
	CommonName string
	// Algorithm is the algorithm of the key. Empty means ECDSAP256.
	Algorithm Algorithm
	// Lifetime counts from now. Zero means DefaultAuthorityLifetime.
	Lifetime time.Duration
}

// New makes a self-signed CA that may issue leaf certificates and nothing else. It returns the CA and its key in PEM
// (PKCS#8). The CA is valid from an hour before now, so that a backdated leaf never begins before its CA. The profile
// follows RFC 5280: sections 4.1.2.2 (serial number), 4.2.1.2 (subject key identifier), 4.2.1.3 (key usage), 4.2.1.9
// (basic constraints).
func New(options NewOptions, now time.Time) (authority *Authority, keyPEM []byte, err error) {
	if letters := utf8.RuneCountInString(options.CommonName); letters < 1 || letters > maxCommonName {
		return nil, nil, fmt.Errorf("the common name %q has %d letters: want 1 to %d",
			options.CommonName, letters, maxCommonName)
	}
	key, keyPEM, err := newKey(options.Algorithm)
	if err != nil {
		return nil, nil, fmt.Errorf("make CA key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, fmt.Errorf("make serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: options.CommonName},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(cmp.Or(options.Lifetime, DefaultAuthorityLifetime)),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign CA certificate: %w", err)
	}
	authority, err = Load(encode(der), keyPEM, nil)
	return authority, keyPEM, err
}

// Renew returns the CA with a new self-signed certificate, valid from an hour before now, for lifetime from now on, or for
// DefaultAuthorityLifetime if lifetime is zero. It has the key, the subject and the extensions of the present certificate, so
// verifiers with one of the two accept what was signed with the other one. Renew fails if another CA has signed the present
// certificate, or if the new one would not end later.
func (a *Authority) Renew(lifetime time.Duration, now time.Time) (*Authority, error) {
	old := a.cert
	if !selfSigned(old) {
		return nil, fmt.Errorf("only %q can renew the certificate %q, which it has signed", old.Issuer, old.Subject)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	template := &x509.Certificate{ // CreateCertificate adds nothing to the extensions of a template without IsCA
		SerialNumber: serial, RawSubject: old.RawSubject, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(cmp.Or(lifetime, DefaultAuthorityLifetime)),
		ExtraExtensions: slices.DeleteFunc(slices.Clone(old.Extensions), func(one pkix.Extension) bool {
			return one.Id.String() == oidAuthorityKeyID // it may name the old serial number, and is optional (RFC 5280 section 4.2.1.1)
		}),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, old, a.key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("sign CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}
	if !cert.NotAfter.After(old.NotAfter) {
		return nil, fmt.Errorf("a certificate that is made now would end at %s, and the present one ends at %s: choose a longer lifetime",
			cert.NotAfter.Format(time.RFC3339), old.NotAfter.Format(time.RFC3339))
	}
	given := []*x509.Certificate{cert}
	paths, err := findPaths(a.key, given, given, nil) // verifies a leaf
	return &Authority{cert: cert, key: a.key, paths: paths, chain: a.chain, given: given}, err
}

// newKey makes a key, and returns it also in PEM (PKCS#8).
func newKey(algorithm Algorithm) (key crypto.Signer, keyPEM []byte, err error) {
	switch algorithm {
	case "", ECDSAP256:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ECDSAP384:
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case RSA3072:
		key, err = rsa.GenerateKey(rand.Reader, 3072)
	case RSA4096:
		key, err = rsa.GenerateKey(rand.Reader, 4096)
	case ED25519:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case MLDSA44:
		key, err = mldsa.GenerateKey(mldsa.MLDSA44())
	case MLDSA65:
		key, err = mldsa.GenerateKey(mldsa.MLDSA65())
	case MLDSA87:
		key, err = mldsa.GenerateKey(mldsa.MLDSA87())
	default:
		err = fmt.Errorf("unknown algorithm %q", algorithm)
	}
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// NewKeyLike makes a key for the renewal of a leaf certificate with the key public, and returns it also in PEM (PKCS#8). An ML-DSA key
// keeps its kind. Others, and nil, become ECDSA P-256, as when a kubelet renews (k8s.io/client-go/util/certificate).
func NewKeyLike(public crypto.PublicKey) (key crypto.Signer, keyPEM []byte, err error) {
	algorithm := ECDSAP256
	if like, is := public.(*mldsa.PublicKey); is {
		algorithm = Algorithm(strings.ReplaceAll(like.Parameters().String(), "-", "")) // it is "ML-DSA-44" there
	}
	return newKey(algorithm)
}

// encode returns der as one CERTIFICATE block.
func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
