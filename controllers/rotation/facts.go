package rotation

import (
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// Facts are what is seen at one moment.
type Facts struct {
	Now time.Time
	// Operation that the owner asks for.
	Operation v1alpha1.Operation
	Ring      RingFacts
	// From is what signs for spec.from; nil if that does not sign yet.
	From *v1alpha1.CAStatus
	// Published says that the CAs of Trusted are published, everywhere and nothing else; Unpublished why they can't be.
	Published   bool
	Unpublished []string
	// Candidate, Signing and Retiring are what the API servers make of that CA.
	Candidate, Signing Proof
	// RetiringTrusted and RetiringRefused are two different questions about one CA.
	RetiringTrusted, RetiringRefused Proof
	// Outstanding is what lives on the retiring CA by its ledger; Sealed that the ledger is closed for it, be it noted or not.
	Outstanding []v1alpha1.Outstanding
	Sealed      bool
	// CandidateUnaccounted says that the ledger does not know the candidate, not even as one that has issued nothing.
	CandidateUnaccounted bool
	// Unaccounted says that the ledger has lost what was issued by the signing CA, SigningSealed that it is closed for it,
	// TLSRetired that it is closed for the CA in tls.crt: that one has retired here. CandidateRetired says so of the candidate.
	// RetiringSigners are those that the retiring one has issued for.
	Unaccounted, SigningSealed, TLSRetired, CandidateRetired bool
	RetiringSigners                                          []string
	// RetiringOpen says that the ledger has an account of the retiring CA that is not closed.
	RetiringOpen bool
	// Above are the CAs by which API servers accept the retiring one although it is not among what they trust.
	Above []string
	// Sharing are other authorities for whose clients API servers accept the retiring CA further on.
	Sharing []string
	// Kept says that extension-apiserver-authentication holds the retiring CA, Holding which aggregated API servers accept it,
	// Unclear of which that is not known: those nobody waits for, as there are such as can't be asked at all.
	Kept             bool
	Holding, Unclear []string
	// SettleFor is how long an answer must be the same.
	SettleFor time.Duration
	// Servers are what API servers said last, of the CA that the phase is about.
	Servers []v1alpha1.APIServerStatus
	// Permitted says that the signer has been told what the spec says now.
	Permitted bool
}

// RingFacts are what the Secret holds. A CA that is not there, or can't be used, is nil.
type RingFacts struct {
	TLS, Signing, Candidate, Retiring *CAFacts
	// Told are the signers that what signs may sign for now.
	Told []string
	// TLSProblem is why what is in tls.crt and tls.key can't be used, if something is.
	TLSProblem string
}

// CAFacts tell one CA from another.
type CAFacts struct {
	KeyID, Fingerprint string
	Certificate        string // PEM
	NotAfter           time.Time
}

func (c *CAFacts) is(noted *v1alpha1.CAStatus) bool {
	return c != nil && noted != nil && c.Fingerprint == noted.Fingerprint
}

func (c *CAFacts) same(other *CAFacts) bool {
	return c != nil && other != nil && c.Fingerprint == other.Fingerprint
}

// Proof is an answer of all API servers, that was the same for long enough, or why it is none. The zero value proves nothing.
type Proof struct {
	Proven bool
	// Settling says that all have given the answer, and not for long enough yet.
	Settling bool
	Missing  []string // sentences that name who stands in the way
}
