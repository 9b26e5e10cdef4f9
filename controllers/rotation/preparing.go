package rotation

import (
	"slices"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// start starts a rotation to a CA that the manager creates.
func (p *planner) start() {
	p.status.Generation++
	p.status.Candidate = nil
	p.enter(v1alpha1.Preparing)
	p.act(MakeCandidate)
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

// planPreparing publishes the candidate, waits until its verifiers trust it, and then signs with it.
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
	case p.otherCABrought():
		p.adopt()
	case p.placeCandidate():
	case p.answerOperation():
	case p.restoreTLS():
	default:
		p.proveCandidate()
	}
}

// otherCABrought reports whether tls.crt and tls.key hold another CA while none signs, or while the candidate that the
// administrator has brought is missing.
func (p *planner) otherCABrought() bool {
	s, secret := p.status, p.facts.Secret
	return (secret.Signing == nil || p.broughtCandidateMissing()) && secret.TLS != nil && p.refuseAsCandidate() == "" &&
		!v1alpha1.SameCA(secret.TLS, s.Candidate) && (s.Signing == nil || secret.TLS.KeyID != s.Signing.KeyID)
}

// broughtCandidateMissing reports whether the Secret lacks a candidate that the administrator has brought. Only the
// administrator replaces it: others may have issued from it, and verifiers may trust no other CA.
func (p *planner) broughtCandidateMissing() bool {
	candidate := p.status.Candidate
	return candidate != nil && candidate.AdoptedAt != nil && !v1alpha1.SameCA(p.facts.Secret.Candidate, candidate)
}

// placeCandidate creates or takes the candidate if the Secret does not have it, and reports whether that was so.
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
	case s.Candidate != nil && v1alpha1.SameCA(secret.TLS, s.Candidate):
		p.act(TakeCandidate)
	case !p.broughtCandidateMissing(): // it has issued nothing
		s.Candidate = nil
		p.act(MakeCandidate)
	default:
		return p.waitForCandidate()
	}
	return true
}

// waitForCandidate waits for the missing candidate that the administrator has brought. It reports whether it does: a
// rollback needs no candidate.
func (p *planner) waitForCandidate() bool {
	secret, missing, more := p.facts.Secret, p.status.Candidate.KeyID, ""
	if secret.TLSProblem != "" {
		more = "; its present content is refused: " + secret.TLSProblem
	} else if secret.TLS != nil && !v1alpha1.SameCA(secret.TLS, secret.Signing) {
		more = "; its present content is refused: " + p.refuseAsCandidate()
	}
	if secret.Signing != nil {
		if p.facts.Operation == v1alpha1.OperationRollback {
			return false
		}
		more += "; or run " + p.command(v1alpha1.OperationRollback)
	}
	if p.facts.Operation != "" {
		p.refuseOperation("the key of the CA %s is missing from the Secret", missing)
		return true
	}
	p.wait("put the CA %s back into tls.crt and tls.key of the Secret, or another CA: its key is missing%s", missing, more)
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
	p.status.Candidate = nil
	p.enter(v1alpha1.Completed) // planCompleted drops the candidate from the Secret
	p.acceptOperation()
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
	if keyID := secret.Candidate.KeyID; secret.Unfit[keyID] != "" { // verifiers that cannot be probed would not show it
		p.wait("the candidate %s cannot sign: %s: wait, or run %s", keyID, secret.Unfit[keyID], p.command(v1alpha1.OperationRollback))
	}
	p.status.WaitingFor = append(p.status.WaitingFor, p.missingTrust(p.facts.Candidate)...)
	if unconfirmed := withoutTrust(signersToConfirm(p.spec.Signers), p.status.Candidate); len(unconfirmed) > 0 {
		p.wait("check that the verifiers of %s trust the candidate %s, because they cannot be probed; then run %s",
			strings.Join(unconfirmed, ", "), p.status.Candidate.KeyID, p.command(v1alpha1.OperationConfirm))
	}
	if len(p.status.WaitingFor) == 0 {
		p.status.Candidate.Signers = slices.Clone(p.spec.Signers)
		p.actOnSecret(Switch)
	}
}
