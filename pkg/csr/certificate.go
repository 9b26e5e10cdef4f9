package csr

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// CertificateRecord is what the controllers need to know of the certificate in a request.
type CertificateRecord struct {
	// NotBefore and NotAfter are those of the first certificate in status.certificate.
	NotBefore, NotAfter time.Time
	// Node is the node that its subject names, or "". It is not longer than the name of a node can be, but can have other
	// characters.
	Node string

	// leaf is the certificate. The record of a trimmed object has issuer instead: the key (ca.KeyID) that has signed it, or "".
	leaf   *x509.Certificate
	issuer string
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
	record = CertificateRecord{NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, leaf: leaf}
	if node, found := strings.CutPrefix(leaf.Subject.CommonName, NodeUserPrefix); found && len(node) <= maxNodeName {
		record.Node = node
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

// SignedBy returns the key of the one of authorities that has signed the certificate (ca.KeyID), or "". The signature decides. The
// issuer's name does not: two generations of a CA may share it. The issuer's key identifier does not: a user who may store a
// certificate can write any identifier into it. A certificate for a key of authorities does not count, because no client holds that
// key, and such a certificate is public and lasts for years. A trimmed object knows only the CAs that Trim.Authorities returned when it
// was trimmed.
func (c CertificateRecord) SignedBy(authorities []*x509.Certificate) (keyID string) {
	for _, authority := range authorities {
		own := ca.KeyID(authority.RawSubjectPublicKeyInfo)
		switch {
		case c.leaf == nil && c.issuer == own:
			return own
		case c.leaf == nil:
		case bytes.Equal(c.leaf.RawSubjectPublicKeyInfo, authority.RawSubjectPublicKeyInfo):
			return ""
		case keyID == "" && authority.CheckSignature(c.leaf.SignatureAlgorithm, c.leaf.RawTBSCertificate, c.leaf.Signature) == nil:
			keyID = own
		}
	}
	return keyID
}

// storedRecord is the form of a CertificateRecord in a trimmed object, in DER. The times are in seconds since 1970.
type storedRecord struct {
	NotBefore, NotAfter int64
	Node, Issuer        []byte
}

// encodeRecord returns what a trimmed object holds in place of the certificate of obj. It is never empty. The record names the
// one of authorities that has signed the certificate.
func encodeRecord(obj *certificatesv1.CertificateSigningRequest, authorities []*x509.Certificate) (encoded []byte) {
	defer func() {
		if recover() != nil { // informers do not recover
			encoded = []byte("unreadable")
		}
	}()
	record, readable := Certificate(obj)
	if !readable {
		return []byte("unreadable")
	}
	issuer := []byte(record.SignedBy(authorities))
	encoded, err := asn1.Marshal(storedRecord{record.NotBefore.Unix(), record.NotAfter.Unix(), []byte(record.Node), issuer})
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
		Node: string(stored.Node), issuer: string(stored.Issuer),
	}, true
}
