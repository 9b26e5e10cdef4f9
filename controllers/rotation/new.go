package rotation

import (
	"slices"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// planNew finds or creates the first CA. It becomes a candidate like any other CA.
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
	secret := p.facts.Secret
	switch {
	case secret.Candidate != nil: // the status was lost before a CA signed
		p.status.Generation = max(p.status.Generation, 1)
		p.status.Candidate = p.adopted(secret.Candidate)
		p.enter(v1alpha1.Preparing)
	case secret.TLS != nil && p.refuseAsCandidate() != "":
		p.wait("put another CA into tls.crt and tls.key of the Secret: %s", p.refuseAsCandidate())
	case secret.TLS != nil:
		p.adopt()
	case secret.TLSProblem != "":
		p.wait("put a usable CA into tls.crt and tls.key of the Secret: %s", secret.TLSProblem)
	default:
		p.start()
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
