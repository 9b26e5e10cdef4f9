package rotation

import (
	"fmt"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// planCompleted waits until a rotation is requested, the Secret gets another CA, or spec.rotateAfter is over.
func (p *planner) planCompleted() {
	secret := p.facts.Secret
	switch {
	case p.checkSecret():
	case secret.Candidate != nil: // from a rotation that was rolled back
		p.act(DropCandidate)
	case !v1alpha1.SameCA(secret.TLS, secret.Signing) && p.refuseTLS() == "":
		p.adopt()
	case p.restoreTLS():
	case p.answerOperation():
	case p.signingMissing():
		p.waitForSigningKey(fmt.Sprintf("run %s to create another CA, which signs as soon as it is trusted; certificates of "+
			"the lost CA stay trusted", p.command(v1alpha1.OperationStart)))
	case !p.facts.Permitted:
		p.act(Permit)
	case p.rotationDue():
		p.start()
	case p.publishFirst():
		p.status.Intent = ""
		p.waitForNextCA()
	}
}

// rotationDue reports whether the signing CA has signed for spec.rotateAfter, which is an hour at least.
func (p *planner) rotationDue() bool {
	return p.spec.RotateAfter != nil && p.status.Signing.SignsSince != nil &&
		p.facts.Now.Sub(p.status.Signing.SignsSince.Time) >= max(p.spec.RotateAfter.Duration, time.Hour)
}
