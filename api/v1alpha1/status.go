package v1alpha1

import (
	"cmp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Phase of an authority.
// +kubebuilder:validation:Enum="";Preparing;Prepared;Completing;Completed
type Phase string

// The phases of a rotation (Gardener GEP-18).
const (
	// New has not begun.
	New Phase = ""
	// Preparing has a candidate that its verifiers do not all trust yet. The CA before it, if there is one, signs.
	Preparing Phase = "Preparing"
	// Prepared signs with the new CA, and has both trusted.
	Prepared Phase = "Prepared"
	// Completing has left the old CA and makes sure that nobody trusts it.
	Completing Phase = "Completing"
	// Completed has one CA.
	Completed Phase = "Completed"
)

// OperationAnnotation is how an owner asks for an Operation. It is taken and removed (GEP-18).
const OperationAnnotation = "csr-controller-manager.io/operation"

// Operation is what an owner can ask for.
type Operation string

// The operations.
const (
	RotateStart    Operation = "rotate-start"
	RotateComplete Operation = "rotate-complete"
	RotateRollback Operation = "rotate-rollback"
	// TrustConfirmed says that those who can't be asked trust the candidate.
	TrustConfirmed Operation = "trust-confirmed"
	// OutstandingAccepted says that what still lives on the retiring CA may break.
	OutstandingAccepted Operation = "outstanding-accepted"
	// AdoptionAttested says that nothing is left that others have issued from the adopted CA.
	AdoptionAttested Operation = "adoption-attested"
)

// The types of conditions.
const (
	// ConditionReady says whether the authority can sign.
	ConditionReady = "Ready"
	// ConditionPublished says whether the bundle is where it belongs.
	ConditionPublished = "Published"
	// ConditionTrusted says whether those who verify trust what signs, or the candidate while there is one.
	ConditionTrusted = "Trusted"
	// ConditionNothingOutstanding says whether nothing lives on the retiring CA any more.
	ConditionNothingOutstanding = "NothingOutstanding"
	// ConditionRefused says whether those who verify refuse the retired CA.
	ConditionRefused = "Refused"
)

// SigningAuthorityStatus is what the manager knows and does. Nobody else writes it.
type SigningAuthorityStatus struct {
	// ObservedGeneration is the metadata.generation that this is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase of the rotation.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Generation counts the CAs: that of the newest one.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Intent is the step under way: written before it is taken, removed after.
	// +optional
	Intent string `json:"intent,omitempty"`
	// TakenOperation is what was taken from the annotation, until that is gone.
	// +optional
	TakenOperation Operation `json:"takenOperation,omitempty"`
	// Signing is the CA that signs.
	// +optional
	Signing *CAStatus `json:"signing,omitempty"`
	// Candidate waits to be trusted.
	// +optional
	Candidate *CAStatus `json:"candidate,omitempty"`
	// Retiring has signed before.
	// +optional
	Retiring *CAStatus `json:"retiring,omitempty"`
	// LastRetired is the CA that was left last, with what its owner has said of it.
	// +optional
	LastRetired *CAStatus `json:"lastRetired,omitempty"`
	// InitiatedAt is when the last rotation began, PreparedAt when the new CA began to sign, CompletionInitiatedAt when
	// the old one began to leave, CompletedAt when it had left.
	// +optional
	InitiatedAt *metav1.Time `json:"initiatedAt,omitempty"`
	// +optional
	PreparedAt *metav1.Time `json:"preparedAt,omitempty"`
	// +optional
	CompletionInitiatedAt *metav1.Time `json:"completionInitiatedAt,omitempty"`
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`
	// LastCompletedAt is when the last rotation was completed. It stays while the next one goes on (GEP-18).
	// +optional
	LastCompletedAt *metav1.Time `json:"lastCompletedAt,omitempty"`
	// LedgerClosedAt is when, while completing, the ledger of the retiring CA was seen closed.
	// +optional
	LedgerClosedAt *metav1.Time `json:"ledgerClosedAt,omitempty"`
	// PrunedAt is when, while completing, the retiring CA was last taken out of what API servers publish, or not found
	// there.
	// +optional
	PrunedAt *metav1.Time `json:"prunedAt,omitempty"`
	// UnpublishedAt is when, while completing, the retiring CA began to leave everything published: from then on there is
	// no way back.
	// +optional
	UnpublishedAt *metav1.Time `json:"unpublishedAt,omitempty"`
	// WaitingFor names what must happen before the next step.
	// +optional
	WaitingFor []string `json:"waitingFor,omitempty"`
	// OutstandingOnRetiring is how many certificates may still live on the retiring CA, at most.
	// +optional
	OutstandingOnRetiring int64 `json:"outstandingOnRetiring"`
	// Outstanding says so by signer.
	// +optional
	Outstanding []Outstanding `json:"outstanding,omitempty"`
	// APIServers are those that were asked last, and what they said.
	// +optional
	APIServers []APIServerStatus `json:"apiServers,omitempty"`
	// Conditions with their reasons.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CAStatus tells one CA from another.
type CAStatus struct {
	// KeyID is the hex of the first eight bytes of the SHA-256 of its public key (SubjectPublicKeyInfo).
	KeyID string `json:"keyID"`
	// Fingerprint is the hex SHA-256 of its certificate.
	Fingerprint string `json:"fingerprint"`
	// Certificate is it in PEM, for the bundle.
	// +optional
	Certificate string `json:"certificate,omitempty"`
	// Generation counts the CAs of this authority.
	Generation int64 `json:"generation"`
	// NotAfter is its end.
	NotAfter metav1.Time `json:"notAfter"`
	// SignsSince is when it began to sign here.
	// +optional
	SignsSince *metav1.Time `json:"signsSince,omitempty"`
	// AdoptedAt is when it was found, if it was not made here: others may have issued from it until then.
	// +optional
	AdoptedAt *metav1.Time `json:"adoptedAt,omitempty"`
	// AttestedAt is when its owner said that nothing is left of what others have issued from it.
	// +optional
	AttestedAt *metav1.Time `json:"attestedAt,omitempty"`
	// Signers are those whose verifiers are known to trust it: they were asked, or its owner has said so.
	// +optional
	Signers []string `json:"signers,omitempty"`
	// TrustConfirmedAt is when its owner said that those who can't be asked trust it.
	// +optional
	TrustConfirmedAt *metav1.Time `json:"trustConfirmedAt,omitempty"`
	// OutstandingAcceptedAt is when its owner said that what lives on it may break.
	// +optional
	OutstandingAcceptedAt *metav1.Time `json:"outstandingAcceptedAt,omitempty"`
}

// Outstanding is what may still live on the retiring CA.
type Outstanding struct {
	// Signer is a signer name, or empty for what others have issued from an adopted CA.
	// +optional
	Signer string `json:"signer,omitempty"`
	// Count is how many there are, at most; zero is unknown.
	// +optional
	Count int64 `json:"count,omitempty"`
	// Until is when the last of them ends, at the latest.
	Until metav1.Time `json:"until"`
}

// APIServerStatus is what an API server said last.
type APIServerStatus struct {
	// Address as host:port.
	Address string `json:"address"`
	// Trust is Recognised, Refused or Unknown.
	Trust string `json:"trust"`
	// Since is when it began to say so without a break.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Evidence is what was seen.
	// +optional
	Evidence string `json:"evidence,omitempty"`
}

// Allowed returns the operations that an administrator can request in phase. The ValidatingAdmissionPolicy in
// config/rotation/admission says the same. A test compares the two.
func Allowed(phase Phase) []Operation {
	switch phase {
	case Preparing:
		return []Operation{TrustConfirmed, RotateRollback, AdoptionAttested}
	case Prepared:
		return []Operation{RotateComplete, RotateRollback, OutstandingAccepted, AdoptionAttested}
	case Completed:
		return []Operation{RotateStart, AdoptionAttested}
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

// Command returns the command that requests o, such as "rotation start". If o is not an operation, it returns o
// itself.
func (o Operation) Command() string {
	switch o {
	case RotateStart:
		return "rotation start"
	case RotateComplete:
		return "rotation complete"
	case RotateRollback:
		return "rotation rollback"
	case TrustConfirmed:
		return "rotation confirm"
	case OutstandingAccepted:
		return "rotation accept"
	case AdoptionAttested:
		return "rotation attest"
	default:
		return string(o)
	}
}
