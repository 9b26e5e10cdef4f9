package rotation

import (
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// planCompleted waits for a rotation to be asked for.
func (p *planner) planCompleted() {
	ring := p.facts.Secret
	switch {
	case p.restoreSigningKey():
	case p.cleanSecret():
	case !ring.TLS.same(ring.Signing) && p.refuseTLS() == "":
		p.adopt()
	case p.restoreTLS():
	case p.completedOperation():
	case p.signingMissing():
		p.waitForSigningKey("rotate-start makes another, which signs as soon as it is trusted; what the lost one has issued stays trusted")
	case !p.facts.Permitted:
		p.act(Permit)
	case p.rotationDue():
		p.start()
	case p.publishFirst():
		p.status.Intent = ""
		p.waitForNextCA()
	}
}

// cleanSecret sees to what should not be in the Secret while no rotation is under way.
func (p *planner) cleanSecret() bool {
	ring := p.facts.Secret
	switch {
	case ring.Candidate != nil:
		p.act(DropCandidate)
	case ring.Retiring == nil:
		return false
	case ring.Retiring.KeyID == ring.Signing.KeyID: // twice, by somebody's hand
		p.actOnSecret(RestoreTLS)
	case p.facts.Sealed: // it has left, and is from a backup: again it goes only when it is refused
		p.status.Retiring = p.noteCA(ring.Retiring, p.status.Generation)
		p.enter(v1alpha1.Completing)
		p.status.UnpublishedAt = p.now()
	default: // it is not known what lives on it
		p.status.Retiring = p.noteCA(ring.Retiring, p.status.Generation)
		p.status.Retiring.AdoptedAt = p.now()
		p.enter(v1alpha1.Prepared)
	}
	return true
}

func (p *planner) completedOperation() bool {
	switch p.facts.Operation {
	case "":
		return false
	case v1alpha1.RotateStart:
		p.acceptOperation()
		p.start()
	case v1alpha1.AdoptionAttested:
		p.attest()
	default:
		p.refuseOperation("no rotation is under way")
	}
	return true
}

func (p *planner) rotationDue() bool {
	return p.spec.RotateAfter != nil && p.status.Signing.SignsSince != nil &&
		p.facts.Now.Sub(p.status.Signing.SignsSince.Time) >= max(p.spec.RotateAfter.Duration, time.Hour)
}
