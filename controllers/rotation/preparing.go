package rotation

import (
	"errors"
	"slices"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// planNew finds or creates the first CA, which becomes a candidate like any other CA. If the Secret has a signing CA already,
// the status is lost, and planNew restores it.
func (p *planner) planNew() {
	switch signing := p.facts.Secret.Signing; {
	case p.answerOperation():
	case p.checkSecret():
	case p.belongsToOther(signing), signing != nil && p.belongsToOther(p.facts.Secret.Retiring):
	case p.facts.sealed(signing):
		p.wait("replace the CA in signing.crt and signing.key of the Secret, or remove both: the CA %s has retired here",
			signing.KeyID)
	case signing != nil:
		p.restoreStatus()
	default:
		p.planFirstCA()
	}
}

// belongsToOther waits if authority is a CA of another SigningAuthority, and reports whether it is. The end of the CA
// there would break its certificates here.
func (p *planner) belongsToOther(authority *v1alpha1.CAStatus) bool {
	if authority == nil || p.facts.Others[authority.KeyID] == "" {
		return false
	}
	p.wait("remove the CA %s from the Secret: it is a CA of SigningAuthority %s", authority.KeyID, p.facts.Others[authority.KeyID])
	return true
}

// planFirstCA takes the first CA from the Secret, or creates one.
func (p *planner) planFirstCA() {
	switch refused := p.refuseTLS(); {
	case p.facts.Secret.Candidate != nil: // the status was lost before a CA signed
		p.status.Generation = max(p.status.Generation, 1)
		p.status.Candidate = p.adopted(p.facts.Secret.Candidate)
		p.enter(v1alpha1.Preparing)
	case refused == nil:
		p.adopt()
	case errors.Is(refused, errEmpty):
		p.start()
	case p.facts.Secret.TLS == nil:
		p.wait("put a usable CA into tls.crt and tls.key of the Secret: %v", refused)
	default:
		p.wait("put another CA into tls.crt and tls.key of the Secret: %v", refused)
	}
}

// restoreStatus rebuilds a lost status from the Secret. The CAs count as adopted, because the record of their
// certificates is lost too.
func (p *planner) restoreStatus() {
	secret := p.facts.Secret
	p.status.Generation = max(p.status.Generation, 1)
	p.status.Signing = p.adopted(secret.Signing)
	p.status.Signing.SignsSince, p.status.Signing.Signers = p.now(), slices.Clone(secret.PermittedSigners)
	switch {
	case secret.Candidate != nil:
		p.status.Generation++
		p.status.Candidate = p.adopted(secret.Candidate)
		p.enter(v1alpha1.Preparing)
	case secret.Retiring != nil:
		p.status.Retiring = p.adopted(secret.Retiring)
		p.enter(v1alpha1.Prepared)
	default:
		p.enter(v1alpha1.Completed)
	}
}

// adopted returns the status entry for found, a CA that was created elsewhere, with the present generation.
func (p *planner) adopted(found *v1alpha1.CAStatus) *v1alpha1.CAStatus {
	authority := found.DeepCopy()
	authority.Generation, authority.AdoptedAt = p.status.Generation, p.now()
	return authority
}

// start starts a rotation to a CA that the manager creates.
func (p *planner) start() {
	p.status.Generation++
	p.status.Candidate = nil
	p.enter(v1alpha1.Preparing)
	if p.facts.NotMade == nil {
		p.act(MakeCandidate)
	}
}

// adopt starts a rotation to the CA that the administrator has put into tls.crt and tls.key. Doing so with the first CA
// also confirms that verifiers which cannot be probed trust it.
func (p *planner) adopt() {
	p.status.Generation++
	p.enter(v1alpha1.Preparing)
	candidate := p.adopted(p.facts.Secret.TLS)
	p.status.Candidate = candidate
	if p.status.Signing == nil {
		candidate.TrustConfirmedAt, candidate.Signers = p.now(), signersToConfirm(p.spec.Signers)
	}
	p.act(TakeCandidate)
}

// planPreparing publishes the candidate, waits until its verifiers trust it, and then signs with it:
//  1. A switch that is done is recorded.
//  2. An edited Secret stops the rotation.
//  3. A CA that the administrator brings replaces a missing candidate.
//  4. The candidate is created, or taken from the pair tls.
//  5. A requested operation is answered.
//  6. The candidate is published and proven, and then signs.
func (p *planner) planPreparing() {
	s, secret := p.status, p.facts.Secret
	switch {
	case secret.Candidate == nil && v1alpha1.SameCA(secret.Signing, s.Candidate): // the switch is done
		s.Signing, s.Retiring, s.Candidate = s.Candidate, s.Signing, nil
		s.Signing.SignsSince = p.now()
		if s.Retiring == nil {
			p.enter(v1alpha1.Completed)
		} else {
			p.enter(v1alpha1.Prepared)
		}
	case p.checkSecret():
	case p.brought():
		p.adopt()
	case p.placeCandidate():
	case p.answerOperation():
	default:
		p.proveCandidate()
	}
}

// placeCandidate creates or takes the candidate if the Secret does not have it, or waits for it if it was there before.
// It reports whether it does any of these.
func (p *planner) placeCandidate() bool {
	s, secret := p.status, p.facts.Secret
	switch {
	case v1alpha1.SameCA(secret.Candidate, s.Candidate):
		return false
	case s.Candidate == nil && secret.Candidate != nil:
		s.Candidate = p.adopted(secret.Candidate)
		if s.Intent == string(MakeCandidate) {
			s.Candidate.AdoptedAt = nil
		}
		s.Intent = ""
	case s.Candidate == nil && p.facts.NotMade != nil:
		p.wait("choose another spec.ca.keyAlgorithm: this manager can't make such a CA: %v", p.facts.NotMade)
		return p.facts.Operation != v1alpha1.OperationRollback
	case s.Candidate == nil:
		p.act(MakeCandidate)
	case v1alpha1.SameCA(secret.TLS, s.Candidate):
		p.act(TakeCandidate)
	case p.firstCandidateLost():
		p.wait("another first CA is made: the key of the CA %s is missing from the Secret, and it has issued nothing", s.Candidate.KeyID)
		p.start()
	default:
		return p.waitForCandidate()
	}
	return true
}

// firstCandidateLost reports whether the manager made the first CA, and lost it before it was to sign. No signer has had
// it then.
func (p *planner) firstCandidateLost() bool {
	s, signing := p.status, p.facts.Secret.Signing
	return s.Signing == nil && signing == nil && s.Candidate.AdoptedAt == nil && s.Intent != string(Switch) &&
		len(p.facts.Accounts[s.Candidate.KeyID].Signers) == 0
}

// waitForCandidate waits for a lost candidate, and reports whether it does: a rollback needs no candidate.
func (p *planner) waitForCandidate() bool {
	signs, keyID, instead := p.facts.Secret.Signing != nil, p.status.Candidate.KeyID, ""
	switch {
	case signs && p.facts.Operation == v1alpha1.OperationRollback:
		return false
	case p.facts.Operation != "":
		p.refuseOperation("the key of the CA %s is missing from the Secret", keyID)
		return true
	case signs:
		instead = "; or run " + p.command(v1alpha1.OperationRollback)
	}
	p.wait("put the CA %s back into candidate.crt and candidate.key of the Secret, from a backup, or another CA into tls.crt and "+
		"tls.key: its key is missing%s", keyID, instead)
	return true
}

// confirm records that the verifiers which cannot be probed trust the candidate.
func (p *planner) confirm() {
	if !p.facts.Published {
		p.refuseOperation("the candidate is not published yet")
		return
	}
	p.status.Candidate.TrustConfirmedAt, p.status.Candidate.Signers = p.now(), signersToConfirm(p.spec.Signers)
	p.acceptOperation()
}

// giveUp ends the rotation without the candidate.
func (p *planner) giveUp() {
	if p.facts.Secret.Signing == nil {
		p.refuseOperation("there is no CA to go back to; to replace the candidate, put another CA into tls.crt and " +
			"tls.key of the Secret")
		return
	}
	p.enter(v1alpha1.Completed)
	p.acceptOperation()
	if p.candidateMissing() {
		p.status.Candidate = nil
	}
	if p.status.Candidate != nil {
		p.act(DropCandidate) // the status has the candidate until then
	}
}

// proveCandidate waits until all verifiers trust the candidate, and then switches to it.
func (p *planner) proveCandidate() {
	secret := p.facts.Secret
	switch {
	case !p.facts.Permitted:
		p.act(Permit)
		return
	case !p.publishFirst():
		return
	case !secret.Candidate.NotAfter.After(p.facts.Now):
		p.wait("the candidate has expired: run %s, or if no CA signs yet, put another CA into tls.crt and tls.key of the "+
			"Secret", p.command(v1alpha1.OperationRollback))
		return
	}
	if why := secret.Unfit[secret.Candidate.Fingerprint]; why != nil { // verifiers that cannot be probed would not show it
		p.wait("the candidate %s cannot sign: %v: wait, or run %s", secret.Candidate.KeyID, why, p.command(v1alpha1.OperationRollback))
	}
	p.status.WaitingFor = append(p.status.WaitingFor, p.missingTrust(p.facts.Candidate)...)
	if unconfirmed := withoutTrust(signersToConfirm(p.spec.Signers), p.status.Candidate); len(unconfirmed) > 0 {
		p.wait("check that the verifiers of %s trust the candidate %s, because they cannot be probed; then run %s",
			strings.Join(unconfirmed, ", "), p.status.Candidate.KeyID, p.command(v1alpha1.OperationConfirm))
	}
	if len(p.status.WaitingFor) == 0 {
		p.status.Candidate.Signers = slices.Clone(p.spec.Signers)
		p.act(Switch)
	}
}
