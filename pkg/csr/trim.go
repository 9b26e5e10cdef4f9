package csr

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"slices"
	"unique"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These are spec.request of a small object. A message in one line follows oversizedRequest. No API server stores them, because
// they are not PEM. The mark is in the spec, because text before the PEM blocks of status.certificate is permitted: any mark
// could be forged there.
var (
	trimmedRequest   = []byte("trimmed by csr-controller-manager")
	largeRequest     = []byte("left out by csr-controller-manager")
	oversizedRequest = []byte("oversized for csr-controller-manager: ")
)

// mostCached is the most bytes of an unfinished request in the cache. A kubelet's request has about 1 kB, and with an ML-DSA-87 key
// almost 11 kB.
const mostCached = 12 << 10

// cutName stands between the start of a name and the UID of its object, if the cache does not hold the name. No API server
// stores a name with this character.
const cutName = "%"

// Trim makes requests small for a cache. The zero Trim is ready.
//
// Managed fields are removed from every request, and lastTransitionTime keeps what they say about the time of a decision
// (ConditionTime). An API server ignores that in an update of the status. A request becomes small if it is
//
//   - finished, or for a signer of others: Trimmed. No controller needs more of it.
//   - above the limits: Oversized. Parse refuses it with the same message.
//   - above 12 KiB: Large. It is read from the API server whenever it is judged.
//
// These stay: name, UID, resourceVersion, times, signer, the name of the requester, the types, statuses and times of conditions,
// and a short record of the certificate. Of an Oversized or a Large one stay the UID and the credential of the requester too, and
// whether it is a node or a bootstrap token. No small object may be the body of a write, which would remove the rest. All
// functions of this package give the same answer for it as for the whole object, except that it can't be parsed, and that SignedBy
// knows only Authorities. Any other request is whole.
//
// If a request is not Reachable, a shortened name and its UID stand in place of its name.
type Trim struct {
	// Limits are those of the controllers that read the cache.
	Limits Limits
	// Ours reports whether a controller decides about requests for a signer. If it is nil, all signers are ours.
	Ours func(signerName string) bool
	// KeepFinished leaves finished requests for our signers whole, for a dry run.
	KeepFinished bool
	// Authorities returns the CAs by which the cache must recognize certificates (CertificateRecord.SignedBy). If they change,
	// a caller must read older requests again, without the cache. If it is nil, there are none.
	Authorities func() []*x509.Certificate
}

// Transform trims in if it is a request, and returns it. It may change the object, as informers permit. Trimming an object
// again does not change it.
func (t Trim) Transform(in any) (any, error) {
	obj, ok := in.(*certificatesv1.CertificateSigningRequest)
	if !ok || small(obj) {
		return in, nil
	}
	for _, kind := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied} {
		if decision := Condition(obj, kind); decision != nil {
			decision.LastTransitionTime = cmp.Or(approvalTime(obj, kind), decision.LastTransitionTime)
		}
	}
	obj.ManagedFields = nil
	ours := t.Ours == nil || t.Ours(obj.Spec.SignerName)
	// A request that has failed but is not approved is not finished: it can still be approved or denied.
	finished := !Undecided(obj) && StateOf(obj) != Approved
	if !ours || finished && !t.KeepFinished {
		t.shrink(obj, trimmedRequest)
	} else if refused := t.Limits.withDefaults().check(obj); refused != nil {
		t.shrink(obj, slices.Concat(oversizedRequest, []byte(refused.Message)))
	} else if obj.Size() > mostCached {
		t.shrink(obj, largeRequest)
	}
	return obj, nil
}

// Trimmed reports whether Trim has removed the content of obj because it is finished or for a signer of others. No controller
// may judge it.
func Trimmed(obj *certificatesv1.CertificateSigningRequest) bool {
	return bytes.Equal(obj.Spec.Request, trimmedRequest)
}

// Oversized reports whether Trim has removed the content of obj because it is above the limits. A write about it must start
// from a whole object.
func Oversized(obj *certificatesv1.CertificateSigningRequest) bool {
	// Text before a PEM block is permitted, but a PEM block has lines.
	return bytes.HasPrefix(obj.Spec.Request, oversizedRequest) && !bytes.Contains(obj.Spec.Request, []byte("\n"))
}

// Large reports whether Trim has removed the content of obj because it is above 12 KiB. It must be read before it is judged.
func Large(obj *certificatesv1.CertificateSigningRequest) bool {
	return bytes.Equal(obj.Spec.Request, largeRequest)
}

func small(obj *certificatesv1.CertificateSigningRequest) bool {
	return Trimmed(obj) || Large(obj) || Oversized(obj)
}

// shrink removes the content of obj, and writes mark into spec.request.
func (t Trim) shrink(obj *certificatesv1.CertificateSigningRequest, mark []byte) {
	if len(obj.Status.Certificate) > 0 {
		var authorities []*x509.Certificate
		if t.Authorities != nil {
			authorities = t.Authorities()
		}
		obj.Status.Certificate = encodeRecord(obj, authorities)
	}
	name := obj.Name
	if !Reachable(obj) {
		name = Shorten(obj.Name) + cutName + string(obj.UID)
	}
	obj.ObjectMeta = metav1.ObjectMeta{
		Name: name, UID: obj.UID, ResourceVersion: obj.ResourceVersion,
		CreationTimestamp: obj.CreationTimestamp, DeletionTimestamp: obj.DeletionTimestamp,
	}
	spec := certificatesv1.CertificateSigningRequestSpec{
		Request: mark, SignerName: shared(obj.Spec.SignerName), Username: Shorten(obj.Spec.Username),
	}
	if !bytes.Equal(mark, trimmedRequest) { // Events and audit records are about it
		spec.UID = Shorten(obj.Spec.UID)
		for _, group := range []string{NodeGroup, BootstrapGroup} {
			if slices.Contains(obj.Spec.Groups, group) {
				spec.Groups = append(spec.Groups, group)
			}
		}
		if ids := obj.Spec.Extra[CredentialIDKey]; len(ids) > 0 {
			spec.Extra = map[string]certificatesv1.ExtraValue{CredentialIDKey: {Shorten(ids[0])}}
		}
	}
	obj.Spec = spec
	for i, condition := range obj.Status.Conditions {
		obj.Status.Conditions[i] = certificatesv1.CertificateSigningRequestCondition{
			Type: shared(condition.Type), Status: shared(condition.Status),
			LastUpdateTime: condition.LastUpdateTime, LastTransitionTime: condition.LastTransitionTime,
		}
	}
}

// shared returns a string that equals text and shares its memory with earlier results. Most finished requests have the
// same signer and the same conditions.
func shared[T ~string](text T) T { return unique.Make(text).Value() }
