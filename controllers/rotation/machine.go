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
	// RestoreBoth does too, and makes what signs there, in a Secret from a backup, retire.
	RestoreBoth Action = "RestoreBoth"
	// Publish makes what is published the CAs of Trusted.
	Publish Action = "Publish"
	// Switch makes the candidate sign and what has signed retire, in one write.
	Switch Action = "Switch"
	// SwapBack makes the retiring CA sign again, and the other one retire.
	SwapBack Action = "SwapBack"
	// Open makes an account in the ledger for what signs, and for the candidate, where they have none any more.
	Open Action = "Open"
	// Permit renews what the signer is told about the signing pair.
	Permit Action = "Permit"
	// Seal closes the ledger for the retiring CA: nothing can be issued by it that the ledger does not name.
	Seal Action = "Seal"
	// Unseal opens it again, and for what signs.
	Unseal Action = "Unseal"
	// Prune removes the retiring CA from the ConfigMap extension-apiserver-authentication.
	Prune Action = "Prune"
	// DestroyRetiring destroys its key.
	DestroyRetiring Action = "DestroyRetiring"
)

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
	m.remember()
	if m.unaccounted() {
		return
	}
	if m.f.SigningSealed && m.f.Published && m.f.Ring.Signing.is(m.s.Signing) { // by who led before, and was late
		m.act(Unseal)
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

// bookkeeping removes an operation that has been noted before. Who asks for the same again in that moment has asked once.
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

// remember notes of what signs for whom it may, where that was not noted yet.
func (m *machine) remember() {
	if s := m.s.Signing; s != nil && s.Signers == nil && m.f.Ring.Signing.is(s) {
		s.Signers = slices.Clone(m.f.Ring.Told)
	}
}

// unaccounted counts a CA as adopted, once nobody can say any more what was issued by it.
func (m *machine) unaccounted() bool {
	var lost []*v1alpha1.CAStatus
	if m.f.Unaccounted {
		lost = append(lost, m.s.Signing)
	}
	if m.f.CandidateUnaccounted {
		lost = append(lost, m.s.Candidate)
	}
	for _, one := range lost {
		one.AdoptedAt, one.AttestedAt = m.now(), nil
		m.act(Open)
	}
	return len(lost) > 0
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
