// Package rotation replaces signing CAs in two phases, and proves before each step that it breaks nothing (Gardener GEP-18;
// a proof by every API server as HyperShift's control-plane-pki-operator has it). It decides in values: Next is pure, and
// the Reconciler looks, notes, acts once, and looks again.
package rotation

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// Action is one change of the world beside the authority's status. Each may be taken again.
type Action string

// The actions.
const (
	None Action = ""
	// CopyFrom takes the CA, and the ledger, of spec.from.
	CopyFrom Action = "CopyFrom"
	// MakeCandidate makes a CA.
	MakeCandidate Action = "MakeCandidate"
	// TakeCandidate makes what is in tls.crt and tls.key the candidate, and puts back there what signs.
	TakeCandidate Action = "TakeCandidate"
	// DropCandidate destroys it.
	DropCandidate Action = "DropCandidate"
	// RestoreTLS puts what signs back to tls.crt and tls.key.
	RestoreTLS Action = "RestoreTLS"
	// RestoreSigning makes what is in tls.crt and tls.key sign, which has been proven before.
	RestoreSigning Action = "RestoreSigning"
	// Publish makes what is published the CAs of Trusted.
	Publish Action = "Publish"
	// Switch makes the candidate sign and what has signed retire, in one write.
	Switch Action = "Switch"
	// SwapBack makes the retiring CA sign again, and the other one retire.
	SwapBack Action = "SwapBack"
	// Open makes an account in the ledger for what signs, which has none any more.
	Open Action = "Open"
	// Permit renews what the signer is told about the signing pair.
	Permit Action = "Permit"
	// Seal closes the ledger for the retiring CA: nothing can be issued by it that the ledger does not name.
	Seal Action = "Seal"
	// Unseal opens it again.
	Unseal Action = "Unseal"
	// Prune removes the retiring CA from the ConfigMap extension-apiserver-authentication.
	Prune Action = "Prune"
	// DestroyRetiring destroys its key.
	DestroyRetiring Action = "DestroyRetiring"
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
	// Outstanding is what lives on the retiring CA by its ledger; Sealed that the ledger is closed for it.
	Outstanding []v1alpha1.Outstanding
	Sealed      bool
	// Unaccounted says that the ledger has lost what was issued by the signing CA, TLSRetired that it is closed for the CA in
	// tls.crt: that one has retired here. RetiringSigners are those that the retiring one has issued for.
	Unaccounted, TLSRetired bool
	RetiringSigners         []string
	// Sharing are other authorities for whose clients API servers accept the retiring CA further on.
	Sharing []string
	// Kept says that extension-apiserver-authentication holds the retiring CA, Holding which aggregated API servers accept it,
	// Unclear of which that is not known: those nobody waits for, as there are such as can't be asked at all.
	Kept             bool
	Holding, Unclear []string
	// Servers are what API servers said last, of the CA that the phase is about.
	Servers []v1alpha1.APIServerStatus
	// Permitted says that the signer has been told what the spec says now.
	Permitted bool
}

// RingFacts are what the Secret holds. A CA that is not there, or can't be used, is nil.
type RingFacts struct {
	TLS, Signing, Candidate, Retiring *CAFacts
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
	Proven  bool
	Missing []string // sentences that name who stands in the way
}

// Step is what to do about an authority: note Status, remove the operation if it is taken, then act. Without an Action, and
// with the status as it was, it waits.
type Step struct {
	Status v1alpha1.SigningAuthorityStatus
	Action Action
	// Take removes the operation's annotation.
	Take bool
	// Refused says why an operation, or an edit of the Secret, is not followed, and what is possible now.
	Refused string
	// Waiting names what must happen before the next step.
	Waiting []string
}

// Next decides. It looks at nothing but its arguments.
func Next(spec *v1alpha1.SigningAuthoritySpec, status *v1alpha1.SigningAuthorityStatus, f Facts) Step {
	m := &machine{spec: spec, s: status.DeepCopy(), f: f}
	m.step.Status = *m.s
	m.run()
	m.s.WaitingFor = m.step.Waiting
	m.step.Status = *m.s
	return m.step
}

type machine struct {
	spec *v1alpha1.SigningAuthoritySpec
	s    *v1alpha1.SigningAuthorityStatus
	f    Facts
	step Step
}

func (m *machine) run() {
	if m.bookkeeping() {
		return
	}
	if m.unaccounted() {
		return
	}
	switch m.s.Phase {
	case v1alpha1.New:
		m.begin()
	case v1alpha1.Preparing:
		m.prepare()
	case v1alpha1.Prepared:
		m.prepared()
	case v1alpha1.Completing:
		m.complete()
	case v1alpha1.Completed:
		m.idle()
	default:
		m.wait("phase %q is none that this version knows", m.s.Phase)
	}
}

// bookkeeping removes an operation that has been noted before.
func (m *machine) bookkeeping() bool {
	switch {
	case m.s.TakenOperation == "":
		return false
	case m.f.Operation == m.s.TakenOperation:
		m.step.Take = true
		return true
	default:
		m.s.TakenOperation = ""
		return false
	}
}

// unaccounted counts what signs as adopted, once nobody can say any more what was issued by it.
func (m *machine) unaccounted() bool {
	if !m.f.Unaccounted || !m.f.Ring.Signing.is(m.s.Signing) {
		return false
	}
	m.s.Signing.AdoptedAt, m.s.Signing.AttestedAt = m.now(), nil
	m.act(Open)
	return true
}

// act notes the intent of action, which Next returns again until its result is seen.
func (m *machine) act(action Action) {
	m.s.Intent, m.step.Action = string(action), action
}

func (m *machine) wait(format string, args ...any) {
	m.step.Waiting = append(m.step.Waiting, fmt.Sprintf(format, args...))
}

// take notes that the operation is followed.
func (m *machine) take() {
	m.s.TakenOperation, m.step.Take = m.f.Operation, true
}

// refuse notes that it is not, which says what is allowed now.
func (m *machine) refuse(format string, args ...any) {
	m.step.Refused = fmt.Sprintf("%s is refused: ", m.f.Operation) + fmt.Sprintf(format, args...) + "; allowed now: " + v1alpha1.AllowedText(m.s.Phase)
	m.take()
}

// Trusted are the CAs to publish, the new one first.
func Trusted(status *v1alpha1.SigningAuthorityStatus) []*v1alpha1.CAStatus {
	all := []*v1alpha1.CAStatus{status.Candidate, status.Signing}
	if status.UnpublishedAt == nil {
		all = append(all, status.Retiring)
	}
	return slices.DeleteFunc(all, func(one *v1alpha1.CAStatus) bool { return one == nil })
}

func (m *machine) now() *metav1.Time {
	now := metav1.NewTime(m.f.Now.Truncate(time.Second))
	return &now
}

// noteCA notes what was found; generation is the one that it gets.
func (m *machine) noteCA(found *CAFacts, generation int64) *v1alpha1.CAStatus {
	return &v1alpha1.CAStatus{KeyID: found.KeyID, Fingerprint: found.Fingerprint, Certificate: found.Certificate, Generation: generation, NotAfter: metav1.NewTime(found.NotAfter)}
}

// attest notes adoption-attested on every CA that was adopted.
func (m *machine) attest() {
	adopted := false
	for _, one := range []*v1alpha1.CAStatus{m.s.Candidate, m.s.Signing, m.s.Retiring} {
		if one != nil && one.AdoptedAt != nil && one.AttestedAt == nil {
			one.AttestedAt, adopted = m.now(), true
		}
	}
	if !adopted {
		m.refuse("no CA here was adopted, or it is attested already")
		return
	}
	m.take()
}
