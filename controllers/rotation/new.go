package rotation

import (
	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// planNew finds or makes the first CA. It is a candidate like any other; with one that its owner has brought, the owner has
// said that those trust it who can't be asked.
func (p *planner) planNew() {
	switch signing := p.facts.Secret.Signing; {
	case p.facts.Operation != "":
		p.refuseOperation("the first CA does not sign yet")
	case signing != nil && p.facts.SigningSealed:
		p.wait("another CA in signing.crt of the Secret, or none: %s has retired here before", signing.KeyID)
	case signing != nil:
		p.restoreStatus()
	default:
		p.planFirstCA()
	}
}

func (p *planner) planFirstCA() {
	ring := p.facts.Secret
	switch {
	case ring.Candidate != nil && p.refuseCandidate() == "":
		p.status.Generation = max(p.status.Generation, 1)
		p.status.Candidate = p.noteCA(ring.Candidate, p.status.Generation)
		p.status.Candidate.AdoptedAt = p.now() // whoever has made it
		p.enter(v1alpha1.Preparing)
	case ring.TLS != nil && p.refuseAsCandidate() != "":
		p.wait("another CA in tls.crt and tls.key of the Secret: %s", p.refuseAsCandidate())
	case ring.TLS != nil:
		p.adopt()
	case ring.TLSProblem != "":
		p.wait("a CA in the Secret that can be used: %s", ring.TLSProblem)
	case p.spec.From != "" && p.facts.From == nil:
		p.wait("SigningAuthority %s to sign", p.spec.From)
	case p.spec.From != "":
		p.act(CopyFrom)
	default:
		p.start()
	}
}

// restoreStatus reads from the Secret what an authority knew whose status is lost. What was known of adoption is lost too.
func (p *planner) restoreStatus() {
	ring := p.facts.Secret
	p.status.Generation = max(p.status.Generation, 1)
	adopted := func(found *CAFacts) *v1alpha1.CAStatus {
		one := p.noteCA(found, p.status.Generation)
		one.AdoptedAt = p.now()
		return one
	}
	p.status.Signing = adopted(ring.Signing)
	p.status.Signing.SignsSince = p.now()
	p.noteSigners()
	switch {
	case ring.Candidate != nil && p.refuseCandidate() == "":
		p.status.Generation++
		p.status.Candidate = adopted(ring.Candidate)
		p.enter(v1alpha1.Preparing)
	case ring.Retiring != nil && ring.Retiring.KeyID != ring.Signing.KeyID:
		p.status.Retiring = adopted(ring.Retiring)
		p.enter(v1alpha1.Prepared)
	default:
		p.enter(v1alpha1.Completed)
	}
}
