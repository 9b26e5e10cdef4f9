package csr

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"
	"time"
	"unique"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stripped marks a stripped request. No API server stores an entry without an operation.
var stripped = []metav1.ManagedFieldsEntry{{Manager: "stripped"}}

// Strip returns a small object in place of obj, for a cache. It holds the identity of obj, its signer, its requester's
// name, its state, and what Deadline and Supersedable read. It never holds more than a few hundred bytes that a
// requester chose. It must not be the body of an Update, because that would erase the rest. Strip does not change obj.
func (l Limits) Strip(obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	if Stripped(obj) {
		return obj
	}
	small := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{
		Name: obj.Name, UID: obj.UID, ResourceVersion: obj.ResourceVersion, ManagedFields: stripped,
		CreationTimestamp: obj.CreationTimestamp, DeletionTimestamp: obj.DeletionTimestamp,
	}}
	small.Spec.SignerName = shared(obj.Spec.SignerName)
	small.Spec.Username = shared(Bounded(obj.Spec.Username))
	if req, ok := l.Supersedable(obj); ok {
		small.Spec.Request = []byte(NodeUserPrefix + Bounded(req.NodeName()))
	}
	for _, kind := range []certificatesv1.RequestConditionType{
		certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed,
	} {
		if condition := Condition(obj, kind); condition != nil {
			small.Status.Conditions = append(small.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: kind, Status: condition.Status, LastUpdateTime: condition.LastUpdateTime,
			})
		}
	}
	if len(obj.Status.Certificate) > 0 {
		small.Status.Certificate = certificateRecord(obj)
	}
	return small
}

// Stripped reports whether obj is a result of Strip.
func Stripped(obj *certificatesv1.CertificateSigningRequest) bool {
	return len(obj.ManagedFields) == 1 && obj.ManagedFields[0].Operation == "" &&
		obj.ManagedFields[0].Manager == stripped[0].Manager
}

// CertificateDigest returns the SHA-256 of status.certificate, also of a stripped request. It is zero without a
// certificate.
func CertificateDigest(obj *certificatesv1.CertificateSigningRequest) [sha256.Size]byte {
	switch {
	case len(obj.Status.Certificate) == 0:
		return [sha256.Size]byte{}
	case Stripped(obj):
		return [sha256.Size]byte(obj.Status.Certificate)
	default:
		return sha256.Sum256(obj.Status.Certificate)
	}
}

// noEnd stands for a certificate that cannot be parsed, so that its end is unknown.
const noEnd = math.MinInt64

// certificateRecord returns what a stripped request holds in place of its certificate: the digest, and the end in
// seconds since 1970.
func certificateRecord(obj *certificatesv1.CertificateSigningRequest) []byte {
	digest := sha256.Sum256(obj.Status.Certificate)
	end := int64(noEnd)
	if notAfter := certificateEnd(obj); !notAfter.IsZero() {
		end = notAfter.Unix()
	}
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, sha256.Size+8), digest[:]...), uint64(end))
}

// recordedEnd returns the end of the certificate of a stripped request, or zero.
func recordedEnd(obj *certificatesv1.CertificateSigningRequest) time.Time {
	if len(obj.Status.Certificate) == 0 {
		return time.Time{}
	}
	end := int64(binary.BigEndian.Uint64(obj.Status.Certificate[sha256.Size:]))
	if end == noEnd {
		return time.Time{}
	}
	return time.Unix(end, 0)
}

// fromStripped returns what Supersedable reads of a stripped request.
func fromStripped(obj *certificatesv1.CertificateSigningRequest) *Request {
	req := &Request{
		Name: obj.Name, UID: obj.UID, SignerName: obj.Spec.SignerName, Created: obj.CreationTimestamp.Time,
		Requester: Requester{Username: obj.Spec.Username},
	}
	req.Cert.Subject.CommonName = string(obj.Spec.Request)
	return req
}

// shared returns a string that equals text and shares its memory with earlier results. Many requests have the same
// signer and requester.
func shared(text string) string { return unique.Make(text).Value() }

// Bounded returns text if it has at most 256 bytes. Otherwise it replaces the end by a digest, so that two texts stay
// different. The result of Bounded is its own result.
func Bounded(text string) string {
	if len(text) <= maxText {
		return text
	}
	digest := sha256.Sum256([]byte(text))
	return strings.ToValidUTF8(text[:maxText-2*sha256.Size], "") + hex.EncodeToString(digest[:])
}
