package csr

import (
	"bytes"
	"cmp"
	"unique"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// trimmedRequest is spec.request of a trimmed object. No API server stores it, because it is not a PEM block. The mark
// is in the spec, because text before the PEM blocks of status.certificate is permitted: any mark could be forged there.
var trimmedRequest = []byte("trimmed by csr-controller-manager")

// zeros stand in the place of a spec.request that is too large. They take no memory, because nothing writes them. No API
// server accepts an object of that size.
var zeros [4 << 20]byte

// Trim makes requests small for a cache. The zero Trim is ready.
//
// Managed fields are removed from every request, and lastTransitionTime keeps what they say about the time of a decision
// (ConditionTime). An API server ignores that in an update of the status. A request that is finished, or for a signer of others, keeps its
// metadata, its conditions, its signer and its requester's name. A short record replaces its certificate, and the rest
// of it is removed. No controller may judge such an object or use it as the body of a write. All functions of this
// package accept it, and give the same answer as for the whole object, except that it can't be parsed.
//
// Any other request is whole, unless spec.request is above the limit. Then zeros of a length above the limit replace
// spec.request. Parse refuses them with the same message, and an API server ignores spec.request in an update.
type Trim struct {
	// Limits are those of the controllers that read the cache.
	Limits Limits
	// Ours reports whether a controller decides about requests for a signer. If it is nil, all signers are ours.
	Ours func(signerName string) bool
}

// Transform trims in if it is a request, and returns it. It may change the object, as informers permit. Trimming an object
// again does not change it.
func (t Trim) Transform(in any) (any, error) {
	obj, ok := in.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return in, nil
	}
	for _, kind := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied} {
		if decision := Condition(obj, kind); decision != nil {
			decision.LastTransitionTime = cmp.Or(approvalTime(obj, kind), decision.LastTransitionTime)
		}
	}
	obj.ManagedFields = nil
	limit := cmp.Or(t.Limits.RequestBytes, DefaultLimits.RequestBytes)
	// A request that has failed but is not approved is not finished: it can still be approved or denied.
	finished := !Undecided(obj) && StateOf(obj) != Approved
	switch {
	case Trimmed(obj):
	case finished || t.Ours != nil && !t.Ours(obj.Spec.SignerName):
		trim(obj)
	case len(obj.Spec.Request) > limit && limit < len(zeros):
		length := max(limit+1, 0)
		obj.Spec.Request = zeros[:length:length]
	}
	return obj, nil
}

// Trimmed reports whether Trim has removed the payload of obj.
func Trimmed(obj *certificatesv1.CertificateSigningRequest) bool {
	return bytes.Equal(obj.Spec.Request, trimmedRequest)
}

func trim(obj *certificatesv1.CertificateSigningRequest) {
	if len(obj.Status.Certificate) > 0 {
		obj.Status.Certificate = encodeRecord(obj)
	}
	obj.Spec = certificatesv1.CertificateSigningRequestSpec{
		Request: trimmedRequest, SignerName: shared(obj.Spec.SignerName), Username: Shorten(obj.Spec.Username),
	}
	obj.GenerateName = shared(obj.GenerateName)
	for i := range obj.Status.Conditions {
		condition := &obj.Status.Conditions[i]
		condition.Type, condition.Status = shared(condition.Type), shared(condition.Status)
		condition.Reason, condition.Message = shared(condition.Reason), shared(condition.Message)
	}
}

// shared returns a string that equals text and shares its memory with earlier results. Most finished requests have the
// same signer and the same conditions.
func shared[T ~string](text T) T { return unique.Make(text).Value() }
