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
// requester chose. It must not be the body of an Update, because that would erase the rest. parse is the Parse of some
// Limits, or returns the same. Strip does not change obj.
func Strip(
	obj *certificatesv1.CertificateSigningRequest,
	parse func(*certificatesv1.CertificateSigningRequest) (*Request, error),
) *certificatesv1.CertificateSigningRequest {
	if Stripped(obj) {
		return obj
	}
	small := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{
		Name: obj.Name, UID: obj.UID, ResourceVersion: obj.ResourceVersion, ManagedFields: stripped,
		CreationTimestamp: obj.CreationTimestamp, DeletionTimestamp: obj.DeletionTimestamp,
	}}
	small.Spec.SignerName = shared(obj.Spec.SignerName)
	small.Spec.Username = shared(Bounded(obj.Spec.Username))
	if req, ok := supersedable(obj, parse); ok {
		small.Spec.Request = []byte(NodeUserPrefix + Bounded(req.NodeName()))
	}
	if len(obj.Status.Certificate) > 0 {
		small.Status.Certificate = certificateRecord(obj)
	}
	for _, kind := range decisions {
		condition := Condition(obj, kind)
		if condition == nil || kind == certificatesv1.CertificateApproved && small.Status.Certificate != nil {
			continue // the record of a certificate has the time of the approval
		}
		small.Status.Conditions = append(small.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: kind, Status: condition.Status, LastUpdateTime: condition.LastUpdateTime,
		})
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

// decisions are the conditions that decide about a request.
var decisions = []certificatesv1.RequestConditionType{
	certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed,
}

// A stripped request holds a record in place of its certificate: the digest, the end of the certificate, and the time
// of the approval. The times are in seconds since 1970.
const (
	recordEnd      = sha256.Size
	recordApproved = recordEnd + 8
	recordSize     = recordApproved + 8
	// unknown stands for no time: the certificate can't be parsed, or the request has no condition Approved. timeless
	// stands for a condition without a time.
	unknown, timeless = math.MinInt64, math.MinInt64 + 1
)

// certificateRecord returns the record of obj.
func certificateRecord(obj *certificatesv1.CertificateSigningRequest) []byte {
	end, approved := int64(unknown), int64(unknown)
	if notAfter := certificateEnd(obj); !notAfter.IsZero() {
		end = notAfter.Unix()
	}
	if condition := Condition(obj, certificatesv1.CertificateApproved); condition != nil {
		if approved = timeless; !condition.LastUpdateTime.IsZero() {
			approved = condition.LastUpdateTime.Unix()
		}
	}
	digest := sha256.Sum256(obj.Status.Certificate)
	record := append(make([]byte, 0, recordSize), digest[:]...)
	record = binary.BigEndian.AppendUint64(record, uint64(end))    //nolint:gosec // recorded reads the same bits
	return binary.BigEndian.AppendUint64(record, uint64(approved)) //nolint:gosec // the same
}

// recorded returns a time of the record of obj. ok is false if obj has no record or no such time.
func recorded(obj *certificatesv1.CertificateSigningRequest, at int) (when time.Time, ok bool) {
	if len(obj.Status.Certificate) == 0 {
		return time.Time{}, false
	}
	//nolint:gosec // certificateRecord wrote these bits
	switch seconds := int64(binary.BigEndian.Uint64(obj.Status.Certificate[at:])); seconds {
	case unknown:
		return time.Time{}, false
	case timeless:
		return time.Time{}, true
	default:
		return time.Unix(seconds, 0), true
	}
}

// decidedAt returns the time of the first condition of that kind. ok is false if obj has none.
func decidedAt(
	obj *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType,
) (at time.Time, ok bool) {
	if condition := Condition(obj, kind); condition != nil {
		return condition.LastUpdateTime.Time, true
	}
	if kind == certificatesv1.CertificateApproved && Stripped(obj) {
		return recorded(obj, recordApproved)
	}
	return time.Time{}, false
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
