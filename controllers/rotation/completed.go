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
	case p.completedOperation():
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

// completedOperation answers the requested operation, and reports whether there was one.
func (p *planner) completedOperation() bool {
	switch p.facts.Operation {
	case "":
		return false
	case v1alpha1.OperationStart:
		p.acceptOperation()
		p.start()
	case v1alpha1.OperationAttest:
		p.attest()
	default:
		p.refuseOperation("no rotation is under way")
	}
	return true
}

// rotationDue reports whether the signing CA has signed for spec.rotateAfter, which is an hour at least.
func (p *planner) rotationDue() bool {
	return p.spec.RotateAfter != nil && p.status.Signing.SignsSince != nil &&
		p.facts.Now.Sub(p.status.Signing.SignsSince.Time) >= max(p.spec.RotateAfter.Duration, time.Hour)
}
