// Package rotation replaces signing CAs in two phases, as Gardener's GEP-18 does. Before each step it verifies that the
// step breaks nothing: it probes every API server, as HyperShift's control-plane-pki-operator does. next is a pure
// function that decides. The Reconciler reads facts, stores the decision, acts once, and reads facts again.
package rotation

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Action is one change outside of the status of the authority. Each action is idempotent.
type Action string

// The actions.
const (
	None Action = ""
	// MakeCandidate creates a CA.
	MakeCandidate Action = "MakeCandidate"
	// TakeCandidate makes the CA in tls.crt and tls.key the candidate, and puts the signing pair back there.
	TakeCandidate Action = "TakeCandidate"
	// DropCandidate destroys the candidate.
	DropCandidate Action = "DropCandidate"
	// MakeRenewed puts a renewed certificate of the signing CA into tls.crt, where an administrator would put it.
	MakeRenewed Action = "MakeRenewed"
	// TakeRenewed makes the renewed certificate of tls.crt sign, in one write.
	TakeRenewed Action = "TakeRenewed"
	// Publish publishes the CAs of publishedCAs and no other.
	Publish Action = "Publish"
	// Switch makes the candidate sign and the signing CA retire, in one write.
	Switch Action = "Switch"
	// SwapBack makes the retiring CA sign again and the signing CA retire, in one write.
	SwapBack Action = "SwapBack"
	// Open creates the lost account of a CA that is to sign in the ledger.
	Open Action = "Open"
	// Permit updates the lifetime cap and the signers in the Secret, which the signer obeys.
	Permit Action = "Permit"
	// Seal closes the account of the retiring CA in the ledger. No signer issues from that CA any more.
	Seal Action = "Seal"
	// Unseal opens the closed account of a CA that signs again.
	Unseal Action = "Unseal"
	// Prune removes the retiring CA from the ConfigMap extension-apiserver-authentication.
	Prune Action = "Prune"
	// DestroyRetiring destroys the key of the retiring CA.
	DestroyRetiring Action = "DestroyRetiring"
)

// step is the decision about an authority: store Status, then remove the annotation if Status answers an operation, then
// take Action. A step that changes nothing waits.
type step struct {
	Status v1alpha1.SigningAuthorityStatus
	Action Action
	// Account is the key ID of the account that Open or Unseal changes.
	Account string
	// Refused says why an operation is refused, and what is possible now.
	Refused string
	// Stopped says which keys of the Secret another client has edited, and how to restore them. Then Action is None, unless
	// only the pair tls is wrong.
	Stopped string
}

// facts are what was observed at one instant.
type facts struct {
	Now time.Time
	// Name is the name of the authority, for messages.
	Name string
	// Operation is the requested operation.
	Operation v1alpha1.Operation
	Secret    secretFacts
	// Permitted reports whether the Secret has the lifetime cap and the signers of the spec.
	Permitted bool
	// Others maps the key IDs of other authorities' CAs, and of those that retired there last, to the names of these
	// authorities.
	Others map[string]string

	// Published reports whether exactly the CAs of publishedCAs are published everywhere. Unpublished says what is wrong.
	Published   bool
	Unpublished []string

	// NotMade is why the manager cannot make a CA with the algorithm of the spec.
	NotMade error
	// NotRenewable is why the manager cannot renew the certificate of the signing CA. It is read if that is requested.
	NotRenewable error
	// RenewedSeen reports whether extension-apiserver-authentication holds the renewed certificate.
	RenewedSeen bool

	// SettleFor is how long verifiers must give the same answer.
	SettleFor time.Duration
	// Candidate, Signing and RetiringTrusted prove that API servers trust that CA, RetiringRefused that they refuse it.
	Candidate, Signing, RetiringTrusted, RetiringRefused probe.Proof
	// Above are CAs that make API servers accept the retiring CA, although they do not trust it directly.
	Above []string
	// OwnCertificate reports whether the retiring CA has issued the client certificate of the manager itself.
	OwnCertificate bool
	// Kept reports whether extension-apiserver-authentication holds the retiring CA.
	Kept bool

	// Accounts is the ledger, by key ID. Every CA that may have signed here has an account, unless the ledger is lost.
	Accounts map[string]ledger.Account
}

// sealed reports whether the account of authority is closed. A CA that does not retire now has retired here then.
func (f *facts) sealed(authority *v1alpha1.CAStatus) bool {
	return authority != nil && f.Accounts[authority.KeyID].Sealed
}

// lost reports whether the ledger has no account of authority.
func (f *facts) lost(authority *v1alpha1.CAStatus) bool {
	_, found := f.Accounts[authority.KeyID]
	return !found
}

// secretFacts are the CAs in the Secret. A missing or unusable CA is nil. The others have only the fields that follow
// from their certificates.
type secretFacts struct {
	TLS, Signing, Candidate, Retiring *v1alpha1.CAStatus
	// Renews reports whether TLS may renew the certificate of the signing CA.
	Renews bool
	// PermittedSigners are the signers that the signing CA may sign for now.
	PermittedSigners []string
	// Unusable has why the content of a pair is no CA.
	Unusable map[pairName]error
	// Unfit has, by fingerprint, why a CA would sign nothing now, for example because it is not valid yet.
	Unfit map[string]error
}

// next decides the next step of an authority. It is a pure function.
func next(spec *v1alpha1.SigningAuthoritySpec, status *v1alpha1.SigningAuthorityStatus, facts facts) step {
	p := &planner{spec: spec, status: status.DeepCopy(), facts: facts}
	p.status.WaitingFor = nil
	for _, authority := range p.status.CAs() {
		authority.Earlier = slices.DeleteFunc(authority.Earlier, func(one v1alpha1.EarlierCertificate) bool { return !one.NotAfter.After(facts.Now) })
	}
	p.plan()
	if p.wrongTLS != "" {
		p.status.WaitingFor = slices.Insert(p.status.WaitingFor, 0, p.wrongTLS)
	}
	p.step.Status = *p.status
	return p.step
}

// planner makes one step. Its status becomes that of the step.
type planner struct {
	spec   *v1alpha1.SigningAuthoritySpec
	status *v1alpha1.SigningAuthorityStatus
	facts  facts
	step   step
	// wrongTLS says how to restore the pair tls, if the step does not need it.
	wrongTLS string
}

// plan decides in this order:
//  1. An answered operation waits until its annotation is removed.
//  2. Each CA that signs, or is to sign, gets an open account in the ledger.
//  3. The phase decides. Each phase first records a finished action, then checks the Secret, then finishes what was begun,
//     and then answers an operation.
func (p *planner) plan() {
	if p.status.Answered() {
		if p.facts.Operation == p.status.LastOperation.Name { // a repeated request counts once
			return
		}
		p.status.LastOperation.Annotated = false
	}
	if p.repairLedger() {
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
		p.wait("the phase %q is unknown: run the version of the manager that wrote it", p.status.Phase)
	}
}

// repairLedger opens the accounts that CAs need to sign, and reports whether it acts. A CA with a lost account counts
// as adopted, because the manager does not know what it has issued.
func (p *planner) repairLedger() bool {
	secret, s := p.facts.Secret, p.status
	for _, ca := range []struct{ found, noted *v1alpha1.CAStatus }{{secret.Signing, s.Signing}, {secret.Candidate, s.Candidate}} {
		if v1alpha1.SameCA(ca.found, ca.noted) && p.facts.lost(ca.noted) {
			ca.noted.AdoptedAt, ca.noted.AttestedAt = p.now(), nil
			p.actOn(ca.noted, Open)
			return true
		}
	}
	if p.facts.Published && v1alpha1.SameCA(secret.Signing, s.Signing) && p.facts.sealed(s.Signing) {
		p.actOn(s.Signing, Unseal) // a late leader has closed it
		return true
	}
	return false
}

// act records action as the intent. next returns it again until it sees the result. The reconciler takes it, and calls next
// again at once.
func (p *planner) act(action Action) { p.status.Intent, p.step.Action = string(action), action }

// actOn takes action on the account of authority.
func (p *planner) actOn(authority *v1alpha1.CAStatus, action Action) {
	p.step.Account = authority.KeyID
	p.act(action)
}

// wait records what must happen before the next step. The reconciler calls next again after its interval.
func (p *planner) wait(format string, args ...any) {
	p.status.WaitingFor = append(p.status.WaitingFor, fmt.Sprintf(format, args...))
}

// command returns the command for operation on this authority, in quotes.
func (p *planner) command(operation v1alpha1.Operation) string {
	return strconv.Quote(strings.TrimSpace(operation.Command() + " " + p.facts.Name))
}

// acceptOperation records that the operation is accepted, so that its annotation is removed.
func (p *planner) acceptOperation() {
	p.status.LastOperation = &v1alpha1.OperationStatus{
		Name: p.facts.Operation, Time: metav1.NewMicroTime(p.facts.Now), Result: v1alpha1.Accepted, Annotated: true,
	}
}

// refuseOperation answers the operation with the reason and with the operations that are allowed now.
func (p *planner) refuseOperation(format string, args ...any) {
	p.step.Refused = fmt.Sprintf("%s is refused: %s; allowed now: %s",
		p.facts.Operation.Command(), fmt.Sprintf(format, args...), v1alpha1.AllowedText(p.status.Phase))
	p.acceptOperation()
	p.status.LastOperation.Result, p.status.LastOperation.Message = v1alpha1.Refused, p.step.Refused
}

// answerOperation answers the requested operation, and reports whether there was one.
func (p *planner) answerOperation() bool {
	operation, phase := p.facts.Operation, p.status.Phase
	switch {
	case operation == "":
		return false
	case !slices.Contains(v1alpha1.Allowed(phase), operation):
		p.refuseOperation("the phase is %s", cmp.Or(phase, "New"))
	case p.status.Renewed != nil && operation != v1alpha1.OperationAttest:
		p.refuseOperation("a renewed certificate is being published: wait until it signs, or drop it: copy signing.crt and signing.key to " +
			"tls.crt and tls.key of the Secret")
	case operation == v1alpha1.OperationRenewCertificate:
		p.renew()
	case operation == v1alpha1.OperationStart:
		p.acceptOperation()
		p.start()
	case operation == v1alpha1.OperationConfirm:
		p.confirm()
	case operation == v1alpha1.OperationRollback && phase == v1alpha1.Preparing:
		p.giveUp()
	case operation == v1alpha1.OperationRollback:
		p.planRollback()
	case operation == v1alpha1.OperationComplete:
		p.planCompletion()
	case operation == v1alpha1.OperationAccept:
		p.status.Retiring.OutstandingAcceptedAt = p.now()
		p.acceptOperation()
	case operation == v1alpha1.OperationAttest:
		p.attest()
	}
	return true
}

// attest records attest for every CA that was adopted.
func (p *planner) attest() {
	adopted := false
	for _, authority := range p.status.CAs() {
		if authority.AdoptedAt != nil && authority.AttestedAt == nil {
			authority.AttestedAt, adopted = p.now(), true
		}
	}
	if !adopted {
		p.refuseOperation("no adopted CA needs it: none was adopted, or all are attested")
		return
	}
	p.acceptOperation()
}

// enter starts phase.
func (p *planner) enter(phase v1alpha1.Phase) {
	s := p.status
	s.Phase, s.Intent, s.LedgerClosedAt, s.UnpublishedAt, s.PrunedAt = phase, "", nil, nil, nil
	s.Renewed = nil
	if phase == v1alpha1.Preparing {
		s.InitiatedAt = p.now()
	}
}

// now returns the instant of the facts in whole seconds, as a status stores it.
func (p *planner) now() *metav1.Time {
	now := metav1.NewTime(p.facts.Now.Truncate(time.Second))
	return &now
}

// publishFirst publishes the trust bundle, and reports whether it is published everywhere.
func (p *planner) publishFirst() bool {
	if !p.facts.Published {
		p.status.WaitingFor = append(p.status.WaitingFor, p.facts.Unpublished...)
		p.act(Publish)
	} else if p.status.Intent == string(Publish) {
		p.status.Intent = ""
	}
	return p.facts.Published
}

// missingTrust returns what proof lacks. It returns nothing if API servers verify no certificate of this authority.
func (p *planner) missingTrust(proof probe.Proof) []string {
	if !asksAPIServers(p.spec.Signers) {
		return nil
	}
	return proof.Lacks()
}

// waitForNextCA reports signers that were added after the signing CA was proven. Only the next CA may sign for them.
func (p *planner) waitForNextCA() {
	if added := withoutTrust(p.spec.Signers, p.status.Signing); len(added) > 0 {
		p.wait("the CA %s does not sign for %s, because their verifiers are not known to trust it: the CA of the next "+
			"rotation will", p.status.Signing.KeyID, strings.Join(added, ", "))
	}
}

// publishedCAs returns the CAs to publish, the newest first, each with its earlier certificates.
func publishedCAs(status *v1alpha1.SigningAuthorityStatus) (all []*v1alpha1.CAStatus) {
	for _, authority := range status.CAs() {
		if authority == status.Retiring && status.UnpublishedAt != nil {
			continue
		}
		all = append(all, authority)
		for _, one := range authority.Earlier {
			all = append(all, &v1alpha1.CAStatus{KeyID: authority.KeyID, Certificate: one.Certificate, NotAfter: one.NotAfter})
		}
	}
	return all
}

// asksAPIServers reports whether API servers verify certificates of any of signers.
func asksAPIServers(signers []string) bool {
	return slices.ContainsFunc(signers, csr.VerifiedByAPIServers)
}

// signersToConfirm returns those of signers whose verifiers cannot be probed. The administrator must confirm their
// trust.
func signersToConfirm(signers []string) []string {
	return slices.DeleteFunc(slices.Clone(signers), csr.VerifiedByAPIServers)
}

// trustedFor reports whether the verifiers of certificates of signer are known to trust authority. API servers verify the
// certificates of all client signers in the same way.
func trustedFor(authority *v1alpha1.CAStatus, signer string) bool {
	return authority != nil && (slices.Contains(authority.Signers, signer) ||
		csr.VerifiedByAPIServers(signer) && asksAPIServers(authority.Signers))
}

// withoutTrust returns those of signers whose verifiers are not known to trust authority.
func withoutTrust(signers []string, authority *v1alpha1.CAStatus) []string {
	return slices.DeleteFunc(slices.Clone(signers), func(name string) bool { return trustedFor(authority, name) })
}

// permittedSigners returns the signers that the signing CA may sign for after action. A CA signs only for signers whose
// verifiers are known to trust it.
func permittedSigners(
	spec *v1alpha1.SigningAuthoritySpec, status *v1alpha1.SigningAuthorityStatus, action Action,
) []string {
	signing := signingAfter(status, action)
	return slices.DeleteFunc(slices.Clone(spec.Signers), func(name string) bool { return !trustedFor(signing, name) })
}

// signingAfter returns the CA that signs after action.
func signingAfter(status *v1alpha1.SigningAuthorityStatus, action Action) *v1alpha1.CAStatus {
	switch action {
	case Switch:
		return status.Candidate
	case SwapBack:
		return status.Retiring
	default:
		return status.Signing
	}
}

// askedToRefuse reports whether API servers verify certificates of the retiring CA, also for signers that were removed
// from the spec.
func askedToRefuse(signers []string, retiring *v1alpha1.CAStatus, f facts) bool {
	return asksAPIServers(signers) || asksAPIServers(f.Accounts[retiring.KeyID].SignerNames())
}
