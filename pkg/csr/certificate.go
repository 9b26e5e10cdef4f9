package csr

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// CertificateRecord is what the controllers need to know of the certificate in a request.
type CertificateRecord struct {
	// NotBefore and NotAfter are those of the first certificate in status.certificate.
	NotBefore, NotAfter time.Time
	// Node is the node that its subject names, or "". It is not longer than the name of a node can be, but can have other
	// characters.
	Node string

	// The signature is kept, because the identifier of the issuer's key proves nothing: whoever may store a certificate
	// can write any identifier into it.
	algorithm x509.SignatureAlgorithm
	signed    []byte // a digest, or for Ed25519 all that is signed
	signature []byte
}

// maxNodeName is the length of the longest name of a Node.
const maxNodeName = 253

// Certificate returns the record of the first certificate in status.certificate, also of a trimmed object. ok is false
// if obj has none, or none that crypto/x509 can read. Certificate ignores the rest of status.certificate, as
// kube-controller-manager does (pkg/controller/certificates/cleaner/cleaner.go, isExpired).
func Certificate(obj *certificatesv1.CertificateSigningRequest) (record CertificateRecord, ok bool) {
	if len(obj.Status.Certificate) == 0 {
		return CertificateRecord{}, false
	}
	if small(obj) {
		return decodeRecord(obj.Status.Certificate)
	}
	leaf, err := firstCertificate(obj.Status.Certificate)
	if err != nil {
		return CertificateRecord{}, false
	}
	record = CertificateRecord{NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter}
	if node, found := strings.CutPrefix(leaf.Subject.CommonName, NodeUserPrefix); found && len(node) <= maxNodeName {
		record.Node = node
	}
	hash, known := signedHashes[leaf.SignatureAlgorithm]
	if !known {
		return record, true
	}
	record.algorithm, record.signed, record.signature = leaf.SignatureAlgorithm, leaf.RawTBSCertificate, leaf.Signature
	if hash != 0 {
		digest := hash.New()
		digest.Write(record.signed)
		record.signed = digest.Sum(nil)
	}
	return record, true
}

// firstCertificate parses the first PEM block in data. A panic becomes an error, because informers trim objects in
// goroutines that do not recover.
func firstCertificate(data []byte) (leaf *x509.Certificate, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			leaf, err = nil, fmt.Errorf("panic: %v", fault)
		}
	}()
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	certs, err := x509.ParseCertificates(block.Bytes)
	if err != nil {
		return nil, err
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate")
	}
	return certs[0], nil
}

// signedHashes holds the signature algorithms that crypto/x509 verifies, with the hash of each. Ed25519 has none.
var signedHashes = map[x509.SignatureAlgorithm]crypto.Hash{
	x509.SHA256WithRSA: crypto.SHA256, x509.SHA384WithRSA: crypto.SHA384, x509.SHA512WithRSA: crypto.SHA512,
	x509.SHA256WithRSAPSS: crypto.SHA256, x509.SHA384WithRSAPSS: crypto.SHA384, x509.SHA512WithRSAPSS: crypto.SHA512,
	x509.ECDSAWithSHA256: crypto.SHA256, x509.ECDSAWithSHA384: crypto.SHA384, x509.ECDSAWithSHA512: crypto.SHA512,
	x509.PureEd25519: 0,
}

// SignedBy reports whether the key of authority has signed the certificate. The name of the issuer does not matter: two
// generations of a CA may share it.
func (c CertificateRecord) SignedBy(authority *x509.Certificate) bool {
	hash, known := signedHashes[c.algorithm]
	if !known {
		return false
	}
	switch key := authority.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return hash != 0 && ecdsa.VerifyASN1(key, c.signed, c.signature)
	case *rsa.PublicKey:
		switch c.algorithm {
		case x509.SHA256WithRSAPSS, x509.SHA384WithRSAPSS, x509.SHA512WithRSAPSS:
			options := &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}
			return rsa.VerifyPSS(key, hash, c.signed, c.signature, options) == nil
		default:
			return hash != 0 && rsa.VerifyPKCS1v15(key, hash, c.signed, c.signature) == nil
		}
	case ed25519.PublicKey:
		return hash == 0 && ed25519.Verify(key, c.signed, c.signature)
	default:
		return false
	}
}

// storedRecord is the form of a CertificateRecord in a trimmed object, in DER. The times are in seconds since 1970.
type storedRecord struct {
	NotBefore, NotAfter int64
	Node                []byte
	Algorithm           int
	Signed, Signature   []byte
}

// encodeRecord returns what a trimmed object holds in place of the certificate of obj. It is never empty.
func encodeRecord(obj *certificatesv1.CertificateSigningRequest) []byte {
	record, readable := Certificate(obj)
	if !readable {
		return []byte("unreadable")
	}
	encoded, err := asn1.Marshal(storedRecord{
		record.NotBefore.Unix(), record.NotAfter.Unix(), []byte(record.Node),
		int(record.algorithm), record.signed, record.signature,
	})
	if err != nil {
		return []byte("unreadable") // DER can hold every value of these types
	}
	return encoded
}

// decodeRecord reads a record. ok is false if the certificate was not readable.
func decodeRecord(encoded []byte) (record CertificateRecord, ok bool) {
	var stored storedRecord
	if rest, err := asn1.Unmarshal(encoded, &stored); err != nil || len(rest) > 0 {
		return CertificateRecord{}, false
	}
	return CertificateRecord{
		NotBefore: time.Unix(stored.NotBefore, 0).UTC(), NotAfter: time.Unix(stored.NotAfter, 0).UTC(),
		Node: string(stored.Node), algorithm: x509.SignatureAlgorithm(stored.Algorithm),
		signed: stored.Signed, signature: stored.Signature,
	}, true
}
