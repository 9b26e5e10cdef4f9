package v1alpha1

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Phase is the phase of a rotation.
// +kubebuilder:validation:Enum="";Preparing;Prepared;Completing;Completed
type Phase string

// The phases of a rotation (Gardener GEP-18).
const (
	// New is the phase before the manager has processed the authority.
	New Phase = ""
	// Preparing is the phase in which not every verifier trusts the candidate yet. The CA before it, if any, signs.
	Preparing Phase = "Preparing"
	// Prepared is the phase in which the new CA signs and both CAs are trusted.
	Prepared Phase = "Prepared"
	// Completing is the phase in which the old CA is removed and verifiers must refuse it.
	Completing Phase = "Completing"
	// Completed is the phase with only one CA.
	Completed Phase = "Completed"
)

// OperationAnnotation requests an Operation. The manager picks it up and removes it (GEP-18).
const OperationAnnotation = "csr-controller-manager.io/operation"

// Operation is a step that an administrator requests.
// +kubebuilder:validation:MaxLength=64
type Operation string

// LongestOperation is the longest text in bytes that the status stores as an Operation.
const LongestOperation = 64

// The operations.
const (
	// OperationStart creates a new CA, and signs with it once every API server trusts it.
	OperationStart Operation = "start"
	// OperationComplete removes the old CA from the trust bundles and destroys its key. It cannot be undone.
	OperationComplete Operation = "complete"
	// OperationRollback goes back to the old CA.
	OperationRollback Operation = "rollback"
	// OperationConfirm states that verifiers which cannot be probed trust the candidate.
	OperationConfirm Operation = "confirm"
	// OperationAccept accepts that valid certificates of the retiring CA stop working.
	OperationAccept Operation = "accept"
	// OperationAttest states that certificates that others have issued from the adopted CA are not in use.
	OperationAttest Operation = "attest"
	// OperationRenewCertificate gives the signing CA a certificate that ends later, with the same key.
	OperationRenewCertificate Operation = "renew-certificate"
)

// OperationResult is what the manager did with a requested operation.
// +kubebuilder:validation:Enum=Accepted;Refused
type OperationResult string

// The results.
const (
	// Accepted means that the operation is done, or that the phase says how far it is.
	Accepted OperationResult = "Accepted"
	// Refused means that nothing was done, or that an accepted operation was stopped. The message says why.
	Refused OperationResult = "Refused"
)

// The types of conditions.
const (
	// ConditionReady reports whether the authority can sign, and nothing stops its rotation.
	ConditionReady = "Ready"
	// ConditionPublished reports whether the trust bundle is published everywhere.
	ConditionPublished = "Published"
	// ConditionTrusted reports whether verifiers trust the signing CA, or the candidate while there is one.
	ConditionTrusted = "Trusted"
	// ConditionRefused reports whether verifiers refuse the removed CA.
	ConditionRefused = "Refused"
)

// SigningAuthorityStatus is the observed state of a SigningAuthority. Only the manager writes it.
type SigningAuthorityStatus struct {
	// ObservedGeneration is the metadata.generation that the status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase is the phase of the rotation.
	Phase Phase `json:"phase,omitempty"`
	// Generation is the number of the newest CA.
	Generation int64 `json:"generation,omitempty"`
	// Intent is the step under way, recorded before the manager acts.
	Intent string `json:"intent,omitempty"`
	// LastOperation is the last requested operation, and its result.
	LastOperation *OperationStatus `json:"lastOperation,omitempty"`
	// Signing is the CA that signs.
	Signing *CAStatus `json:"signing,omitempty"`
	// Candidate is the new CA that is not trusted everywhere yet.
	Candidate *CAStatus `json:"candidate,omitempty"`
	// Renewed is the signing CA with a certificate that ends later. It is published, and does not sign yet.
	Renewed *CAStatus `json:"renewed,omitempty"`
	// Retiring is the CA that signed before.
	Retiring *CAStatus `json:"retiring,omitempty"`
	// LastRetired is the CA that was removed last.
	LastRetired *CAStatus `json:"lastRetired,omitempty"`
	// InitiatedAt is when the last rotation started.
	InitiatedAt *metav1.Time `json:"initiatedAt,omitempty"`
	// LastCompletedTime is when the last rotation was completed. It stays during the next one (GEP-18).
	LastCompletedTime *metav1.Time `json:"lastCompletedTime,omitempty"`
	// LedgerClosedAt is when the manager, in Completing, saw the ledger of the retiring CA closed.
	LedgerClosedAt *metav1.Time `json:"ledgerClosedAt,omitempty"`
	// PrunedAt is when the manager, in Completing, last removed the retiring CA from the ConfigMap that API servers
	// publish, or did not find it there.
	PrunedAt *metav1.Time `json:"prunedAt,omitempty"`
	// UnpublishedAt is when the manager, in Completing, began to remove the retiring CA from the trust bundles. That
	// cannot be undone.
	UnpublishedAt *metav1.Time `json:"unpublishedAt,omitempty"`
	// WaitingFor lists what must happen before the next step.
	WaitingFor []string `json:"waitingFor,omitempty"`
	// OutstandingUntil is when the last certificate of the retiring CA expires, at the latest. Unset if none is valid.
	OutstandingUntil *metav1.Time `json:"outstandingUntil,omitempty"`
	// Outstanding lists the certificates of the retiring CA that may be valid, by signer.
	Outstanding []Outstanding `json:"outstanding,omitempty"`
	// Conditions are the conditions of the authority.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CAs returns the candidate, the renewed certificate, the signing CA and the retiring CA, without those that do not exist.
func (s *SigningAuthorityStatus) CAs() []*CAStatus {
	all := []*CAStatus{s.Candidate, s.Renewed, s.Signing, s.Retiring}
	return slices.DeleteFunc(all, func(authority *CAStatus) bool { return authority == nil })
}

// Renewing reports whether a renewed certificate is being made or published.
func (s *SigningAuthorityStatus) Renewing() bool {
	return s.Renewed != nil || s.Intent == "MakeRenewed"
}

// OperationStatus is a requested operation and its result.
type OperationStatus struct {
	// Name is the operation, as in the annotation.
	Name Operation `json:"name"`
	// Time is when the manager gave the result.
	Time metav1.MicroTime `json:"time"`
	// Result is the result.
	Result OperationResult `json:"result"`
	// Message says why the operation is refused.
	Message string `json:"message,omitempty"`
	// Annotated is true until the manager has removed the annotation.
	Annotated bool `json:"annotated,omitempty"`
}

// Answered reports whether the manager has answered an operation whose annotation it has not removed yet.
func (s *SigningAuthorityStatus) Answered() bool {
	return s.LastOperation != nil && s.LastOperation.Annotated
}

// CAStatus identifies a CA, and says what is known about it.
type CAStatus struct {
	// KeyID is the hex of the first eight bytes of the SHA-256 of its public key (SubjectPublicKeyInfo).
	KeyID string `json:"keyID"`
	// Fingerprint is the hex SHA-256 of its certificate.
	Fingerprint string `json:"fingerprint"`
	// Certificate is its certificate in PEM.
	Certificate string `json:"certificate,omitempty"`
	// Generation is the number of this CA in its authority.
	Generation int64 `json:"generation"`
	// NotAfter is when it expires.
	NotAfter metav1.Time `json:"notAfter"`
	// Earlier are the last eight certificates of its key that were renewed, the newest first. They are published until they expire.
	// +kubebuilder:validation:MaxItems=8
	Earlier []EarlierCertificate `json:"earlier,omitempty"`
	// SignsSince is when it began to sign in this authority.
	SignsSince *metav1.Time `json:"signsSince,omitempty"`
	// AdoptedAt is when the manager found the CA, if it did not create it.
	AdoptedAt *metav1.Time `json:"adoptedAt,omitempty"`
	// AttestedAt is when the administrator stated that certificates of other issuers are not in use.
	AttestedAt *metav1.Time `json:"attestedAt,omitempty"`
	// Signers are the signers whose verifiers are known to trust it, by a probe or a confirmation.
	Signers []string `json:"signers,omitempty"`
	// TrustConfirmedAt is when the administrator confirmed that the other verifiers trust it.
	TrustConfirmedAt *metav1.Time `json:"trustConfirmedAt,omitempty"`
	// OutstandingAcceptedAt is when the administrator accepted that its valid certificates stop working.
	OutstandingAcceptedAt *metav1.Time `json:"outstandingAcceptedAt,omitempty"`
}

// EarlierCertificate is a certificate of a CA that was renewed.
type EarlierCertificate struct {
	// Certificate is the certificate in PEM.
	Certificate string `json:"certificate"`
	// NotAfter is when it expires.
	NotAfter metav1.Time `json:"notAfter"`
}

// SameCA reports whether both have the same certificate. Nil is no CA.
func SameCA(a, b *CAStatus) bool { return a != nil && b != nil && a.Fingerprint == b.Fingerprint }

// Outstanding describes certificates of the retiring CA that may still be valid.
type Outstanding struct {
	// Signer is a signer name or a description of several, or empty for certificates that others have issued from an adopted CA.
	Signer string `json:"signer,omitempty"`
	// Until is when the last of them expires, at the latest.
	Until metav1.Time `json:"until"`
}

// Allowed returns the operations that an administrator can request in phase. The ValidatingAdmissionPolicy in
// config/rotation/admission says the same. A test compares the two.
func Allowed(phase Phase) []Operation {
	switch phase {
	case Preparing:
		return []Operation{OperationConfirm, OperationRollback, OperationAttest}
	case Prepared:
		return []Operation{OperationComplete, OperationRollback, OperationAccept, OperationAttest}
	case Completed:
		return []Operation{OperationStart, OperationAttest, OperationRenewCertificate}
	default:
		return nil
	}
}

// AllowedText returns the commands for the operations that phase allows, as a list for people.
func AllowedText(phase Phase) string {
	var names []string
	for _, operation := range Allowed(phase) {
		names = append(names, operation.Command())
	}
	return cmp.Or(strings.Join(names, ", "), "none, wait for the next phase")
}

// Command returns the command that requests o, such as "rotation start".
func (o Operation) Command() string { return "rotation " + string(o) }
