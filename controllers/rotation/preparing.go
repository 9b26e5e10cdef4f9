package rotation

import (
	"slices"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// start begins to make a CA.
func (p *planner) start() {
	p.status.Generation++
	p.status.Candidate = nil
	p.enter(v1alpha1.Preparing)
	p.act(MakeCandidate)
}

// adopt takes a CA that its owner has put into the Secret as the candidate.
func (p *planner) adopt() {
	p.status.Generation++
	p.enter(v1alpha1.Preparing)
	p.status.Candidate = p.noteCA(p.facts.Secret.TLS, p.status.Generation)
	p.status.Candidate.AdoptedAt = p.now()
	if p.status.Signing == nil {
		p.confirmTrust()
		if from := p.facts.From; p.facts.Secret.TLS.is(from) { // its ledger has come with it
			p.status.Candidate.AdoptedAt, p.status.Candidate.AttestedAt, p.status.Candidate.TrustConfirmedAt = from.AdoptedAt, from.AttestedAt, from.TrustConfirmedAt
			p.status.Candidate.Signers = slices.Clone(from.Signers)
		}
	}
	p.act(TakeCandidate)
}

// planPreparing has a candidate trusted, and then switches.
func (p *planner) planPreparing() {
	switch {
	case p.facts.Secret.Candidate == nil && p.facts.Secret.Signing.is(p.status.Candidate):
		p.noteSwitch()
	case p.restoreSigningKey():
	case p.otherCABrought():
		p.adopt()
	case p.placeCandidate():
	case p.preparingOperation():
	case p.restoreTLS():
	default:
		p.proveCandidate()
	}
}

// otherCABrought says whether the owner has put another CA into the Secret while none signs.
func (p *planner) otherCABrought() bool {
	ring := p.facts.Secret
	return ring.Signing == nil && ring.TLS != nil && !ring.TLS.is(p.status.Candidate) && !ring.TLS.is(p.status.Signing) && p.refuseAsCandidate() == ""
}

// placeCandidate sees to it that there is one, and that it is the one that is noted.
func (p *planner) placeCandidate() bool {
	ring := p.facts.Secret
	switch {
	case ring.Candidate.is(p.status.Candidate):
		return false
	case ring.Candidate != nil && p.refuseCandidate() == "":
		made := p.status.Intent == string(MakeCandidate)
		if p.status.Candidate, p.status.Intent = p.noteCA(ring.Candidate, p.status.Generation), ""; !made {
			p.status.Candidate.AdoptedAt = p.now() // whoever has put it there
		}
	case p.status.Candidate != nil && ring.TLS.is(p.status.Candidate):
		p.act(TakeCandidate)
	case p.status.Signing == nil && p.status.Candidate != nil && p.status.Candidate.AdoptedAt != nil: // others may have issued from it
		p.waitForCandidate()
	default:
		p.status.Candidate = nil // it was never trusted with anything
		p.act(MakeCandidate)
	}
	return true
}

// waitForCandidate waits for a candidate that its owner has brought, and which has gone before anything signed.
func (p *planner) waitForCandidate() {
	if p.facts.Operation != "" {
		p.refuseOperation("the CA %s is not in the Secret any more", p.status.Candidate.KeyID)
		return
	}
	p.wait("the CA %s to be put back into tls.crt and tls.key of the Secret, or another one: it is not there any more", p.status.Candidate.KeyID)
}

// noteSwitch notes that the candidate signs.
func (p *planner) noteSwitch() {
	p.status.Signing, p.status.Retiring, p.status.Candidate = p.status.Candidate, p.status.Signing, nil
	p.status.Signing.SignsSince = p.now()
	if p.status.Retiring == nil {
		p.enter(v1alpha1.Completed)
		return
	}
	p.enter(v1alpha1.Prepared)
}

// preparingOperation follows an operation.
func (p *planner) preparingOperation() bool {
	switch p.facts.Operation {
	case "":
		return false
	case v1alpha1.TrustConfirmed:
		if !p.facts.Published {
			p.refuseOperation("the candidate is not published yet")
			break
		}
		p.confirmTrust()
		p.acceptOperation()
	case v1alpha1.AdoptionAttested:
		p.attest()
	case v1alpha1.RotateRollback:
		if p.facts.Secret.Signing == nil {
			p.refuseOperation("there is no CA to go back to; another one in tls.crt and tls.key of the Secret takes the place of the candidate")
			break
		}
		p.status.Candidate = nil
		p.enter(v1alpha1.Completed) // which drops what is left of it
		p.acceptOperation()
	default:
		p.refuseOperation("a candidate waits to be trusted")
	}
	return true
}

// proveCandidate waits until everybody trusts the candidate.
func (p *planner) proveCandidate() {
	switch {
	case !p.facts.Permitted:
		p.act(Permit)
		return
	case !p.publishFirst():
		return
	case !p.facts.Secret.Candidate.NotAfter.After(p.facts.Now):
		p.wait("another candidate, as this one has ended: rotate-rollback, or if no CA signs yet another one in tls.crt and tls.key of the Secret")
		return
	case p.facts.Secret.Retiring != nil:
		p.wait("retiring.crt and retiring.key to be removed from the Secret: they hold the CA %s, which no rotation has left there", p.facts.Secret.Retiring.KeyID)
		return
	}
	p.waitForTrust(p.facts.Candidate)
	unconfirmed := slices.DeleteFunc(signersToConfirm(p.spec.Signers), func(name string) bool { return trustedFor(p.status.Candidate, name) })
	if len(unconfirmed) > 0 {
		p.wait("its owner to confirm that those who can't be asked trust the candidate %s (%s): operation %s",
			p.status.Candidate.KeyID, strings.Join(unconfirmed, ", "), v1alpha1.TrustConfirmed)
	}
	if len(p.step.Waiting) == 0 {
		p.status.Candidate.Signers = slices.Clone(p.spec.Signers)
		p.actOnSecret(Switch)
	}
}

// confirmTrust notes that those who can't be asked trust the candidate, as its owner says: those of the signers that there are now.
func (p *planner) confirmTrust() {
	p.status.Candidate.TrustConfirmedAt, p.status.Candidate.Signers = p.now(), signersToConfirm(p.spec.Signers)
}
