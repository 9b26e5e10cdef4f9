// Package rotation replaces signing CAs in two phases, and proves before each step that it breaks nothing (Gardener GEP-18;
// a proof by every API server as HyperShift's control-plane-pki-operator has it). It decides in values: Next is pure, and
// the Reconciler looks, notes, acts once, and looks again.
package rotation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
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
	// RemoveOperation removes the operation's annotation.
	RemoveOperation bool
	// Refused says why an operation, or an edit of the Secret, is not followed, and what is possible now.
	Refused string
	// Waiting names what must happen before the next step.
	Waiting []string
}

// Facts are what is seen at one moment.
type Facts struct {
	Now time.Time
	// Operation that the owner asks for.
	Operation v1alpha1.Operation
	Secret    SecretFacts
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
	// SigningUnaccounted says that the ledger has lost what was issued by the signing CA, SigningSealed that it is closed for it,
	// TLSRetired that it is closed for the CA in tls.crt: that one has retired here. CandidateRetired says so of the candidate.
	// RetiringSigners are those that the retiring one has issued for.
	SigningUnaccounted, SigningSealed, TLSRetired, CandidateRetired bool
	RetiringSigners                                                 []string
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
	// APIServers are what API servers said last, of the CA that the phase is about.
	APIServers []v1alpha1.APIServerStatus
	// Permitted says that the signer has been told what the spec says now.
	Permitted bool
}

// SecretFacts are what the Secret holds. A CA that is not there, or can't be used, is nil.
type SecretFacts struct {
	TLS, Signing, Candidate, Retiring *CAFacts
	// PermittedSigners are the signers that what signs may sign for now.
	PermittedSigners []string
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

// Next decides. It looks at nothing but its arguments.
func Next(spec *v1alpha1.SigningAuthoritySpec, status *v1alpha1.SigningAuthorityStatus, facts Facts) Step {
	p := &planner{spec: spec, status: status.DeepCopy(), facts: facts}
	p.step.Status = *p.status
	p.plan()
	p.status.WaitingFor = p.step.Waiting
	p.step.Status = *p.status
	return p.step
}

type planner struct {
	spec   *v1alpha1.SigningAuthoritySpec
	status *v1alpha1.SigningAuthorityStatus
	facts  Facts
	step   Step
}

func (p *planner) plan() {
	if p.removeTakenOperation() {
		return
	}
	p.noteSigners()
	if p.openAccounts() {
		return
	}
	if p.facts.SigningSealed && p.facts.Published && p.facts.Secret.Signing.is(p.status.Signing) { // by who led before, and was late
		p.act(Unseal)
		return
	}
	switch p.status.Phase {
	case v1alpha1.New:
		p.planNew()
	case v1alpha1.Preparing:
		p.planPreparing()
	case v1alpha1.Prepared:
		p.planPrepared()
	case v1alpha1.Completing:
		p.planCompleting()
	case v1alpha1.Completed:
		p.planCompleted()
	default:
		p.wait("phase %q is none that this version knows", p.status.Phase)
	}
}

// removeTakenOperation removes an operation that has been noted before. Who asks for the same again in that moment has asked once.
func (p *planner) removeTakenOperation() bool {
	switch {
	case p.status.TakenOperation == "":
		return false
	case p.facts.Operation == p.status.TakenOperation:
		p.step.RemoveOperation = true
		return true
	default:
		p.status.TakenOperation = ""
		return false
	}
}

// noteSigners notes of what signs for whom it may, where that was not noted yet.
func (p *planner) noteSigners() {
	if s := p.status.Signing; s != nil && s.Signers == nil && p.facts.Secret.Signing.is(s) {
		s.Signers = slices.Clone(p.facts.Secret.PermittedSigners)
	}
}

// openAccounts counts a CA as adopted, once nobody can say any more what was issued by it.
func (p *planner) openAccounts() bool {
	var lost []*v1alpha1.CAStatus
	if p.facts.SigningUnaccounted {
		lost = append(lost, p.status.Signing)
	}
	if p.facts.CandidateUnaccounted {
		lost = append(lost, p.status.Candidate)
	}
	for _, one := range lost {
		one.AdoptedAt, one.AttestedAt = p.now(), nil
		p.act(Open)
	}
	return len(lost) > 0
}

// act notes the intent of action, which Next returns again until its result is seen.
func (p *planner) act(action Action) {
	p.status.Intent, p.step.Action = string(action), action
}

func (p *planner) wait(format string, args ...any) {
	p.step.Waiting = append(p.step.Waiting, fmt.Sprintf(format, args...))
}

// acceptOperation notes that the operation is followed.
func (p *planner) acceptOperation() {
	p.status.TakenOperation, p.step.RemoveOperation = p.facts.Operation, true
}

// refuseOperation notes that it is not, which says what is allowed now.
func (p *planner) refuseOperation(format string, args ...any) {
	p.step.Refused = fmt.Sprintf("%s is refused: ", p.facts.Operation) + fmt.Sprintf(format, args...) + "; allowed now: " + v1alpha1.AllowedText(p.status.Phase)
	p.acceptOperation()
}

// attest notes adoption-attested on every CA that was adopted.
func (p *planner) attest() {
	adopted := false
	for _, one := range []*v1alpha1.CAStatus{p.status.Candidate, p.status.Signing, p.status.Retiring} {
		if one != nil && one.AdoptedAt != nil && one.AttestedAt == nil {
			one.AttestedAt, adopted = p.now(), true
		}
	}
	if !adopted {
		p.refuseOperation("no CA here was adopted, or it is attested already")
		return
	}
	p.acceptOperation()
}

func (p *planner) enter(phase v1alpha1.Phase) {
	p.status.Phase, p.status.Intent, p.status.LedgerClosedAt, p.status.PrunedAt = phase, "", nil, nil
	switch phase {
	case v1alpha1.Preparing:
		p.status.InitiatedAt, p.status.PreparedAt, p.status.CompletionInitiatedAt, p.status.CompletedAt, p.status.UnpublishedAt = p.now(), nil, nil, nil, nil
	case v1alpha1.Prepared:
		p.status.PreparedAt, p.status.CompletionInitiatedAt = p.now(), nil
	case v1alpha1.Completing:
		p.status.CompletionInitiatedAt = p.now()
	case v1alpha1.Completed:
		p.status.CompletedAt, p.status.UnpublishedAt = p.now(), nil
	case v1alpha1.New:
	}
}

// noteCA notes what was found; generation is the one that it gets.
func (p *planner) noteCA(found *CAFacts, generation int64) *v1alpha1.CAStatus {
	return &v1alpha1.CAStatus{KeyID: found.KeyID, Fingerprint: found.Fingerprint, Certificate: found.Certificate, Generation: generation, NotAfter: metav1.NewTime(found.NotAfter)}
}

func (p *planner) now() *metav1.Time {
	now := metav1.NewTime(p.facts.Now.Truncate(time.Second))
	return &now
}

// publishFirst has the bundle published first.
func (p *planner) publishFirst() bool {
	if !p.facts.Published {
		p.step.Waiting = append(p.step.Waiting, p.facts.Unpublished...)
		p.act(Publish)
	} else if p.status.Intent == string(Publish) {
		p.status.Intent = ""
	}
	return p.facts.Published
}

// waitForTrust waits for the API servers, if they verify what any of the signers issues.
func (p *planner) waitForTrust(proof Proof) {
	if AsksAPIServers(p.spec.Signers) {
		p.waitForProof(proof)
	}
}

func (p *planner) waitForProof(proof Proof) {
	if proof.Proven {
		return
	}
	if len(proof.Missing) == 0 {
		p.wait("every API server to be asked")
	}
	p.step.Waiting = append(p.step.Waiting, proof.Missing...)
}

// waitForNextCA waits for a CA that signs for signers that came when the one that signs was proven already.
func (p *planner) waitForNextCA() {
	added := slices.DeleteFunc(slices.Clone(p.spec.Signers), func(name string) bool { return trustedFor(p.status.Signing, name) })
	if len(added) > 0 {
		p.wait("the next CA, to sign for %s too: it is not known of those who verify its certificates that they trust the CA %s", strings.Join(added, ", "), p.status.Signing.KeyID)
	}
}

// Trusted are the CAs to publish, the new one first.
func Trusted(status *v1alpha1.SigningAuthorityStatus) []*v1alpha1.CAStatus {
	all := []*v1alpha1.CAStatus{status.Candidate, status.Signing}
	if status.UnpublishedAt == nil {
		all = append(all, status.Retiring)
	}
	return slices.DeleteFunc(all, func(one *v1alpha1.CAStatus) bool { return one == nil })
}

// AsksAPIServers says whether API servers verify what any of signers issues.
func AsksAPIServers(signers []string) bool { return slices.ContainsFunc(signers, verifiedByAPIServers) }

// signersToConfirm are the signers whose verifiers can't be asked.
func signersToConfirm(signers []string) []string {
	return slices.DeleteFunc(slices.Clone(signers), verifiedByAPIServers)
}

// verifiedByAPIServers says whether API servers verify what signer issues.
func verifiedByAPIServers(signer string) bool {
	return signer == certificatesv1.KubeAPIServerClientSignerName || signer == certificatesv1.KubeAPIServerClientKubeletSignerName
}

// trustedFor says whether the verifiers of signer are known to trust one: all that API servers verify, they verify alike.
func trustedFor(one *v1alpha1.CAStatus, signer string) bool {
	return one != nil && (slices.Contains(one.Signers, signer) || verifiedByAPIServers(signer) && AsksAPIServers(one.Signers))
}

// permittedSigners are those of spec that what signs after action may sign for: no CA does for one whose verifiers are not known
// to trust it.
func permittedSigners(spec *v1alpha1.SigningAuthoritySpec, status *v1alpha1.SigningAuthorityStatus, action Action) []string {
	signing := status.Signing
	switch action {
	case Switch:
		signing = status.Candidate
	case SwapBack:
		signing = status.Retiring
	}
	return slices.DeleteFunc(slices.Clone(spec.Signers), func(name string) bool { return !trustedFor(signing, name) })
}

// askedToRefuse says whether API servers have verified what the retiring CA has issued, be it for signers that have left.
func askedToRefuse(signers []string, f Facts) bool {
	return AsksAPIServers(signers) || AsksAPIServers(f.RetiringSigners)
}
