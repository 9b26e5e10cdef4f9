package rotation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// maxEarlier bounds CAStatus.Earlier. Any user who may request operations can renew a certificate again and again.
const maxEarlier = 8

// planCompleting removes the retiring CA:
//  1. An operation is refused, a destroyed key is recorded, and an edited Secret stops the rotation.
//  2. The Secret gets its permit.
//  3. The ledger is closed, and no certificate is outstanding.
//  4. The CA leaves the trust bundle.
//  5. Every API server refuses it.
//  6. Its key is destroyed.
func (p *planner) planCompleting() {
	s := p.status
	switch {
	case p.answerOperation():
	case p.facts.Secret.Retiring == nil && s.Intent == string(DestroyRetiring): // the key is destroyed
		s.LastRetired, s.Retiring = s.Retiring, nil
		s.LastRetired.Certificate, s.LastRetired.Earlier, s.LastCompletedTime = "", nil, p.now()
		p.enter(v1alpha1.Completed)
	case p.checkSecret():
	// A refusal proves nothing unless a certificate of the signing CA is accepted.
	case p.signingMissing() && p.facts.Secret.Retiring != nil:
		p.waitForSigningKey("remove retiring.crt and retiring.key from the Secret to continue")
	case !p.facts.Permitted:
		p.act(Permit)
	case s.UnpublishedAt == nil:
		p.planUnpublish()
	case !p.facts.lost(s.Retiring) && !p.facts.sealed(s.Retiring): // a late leader has opened it
		p.act(Seal)
	case !p.publishFirst():
	default:
		p.waitForRefusal()
	}
}

// planUnpublish removes the retiring CA from the trust bundle. It checks for outstanding certificates before and after
// the ledger is closed, because only a closed ledger gets no new entries.
func (p *planner) planUnpublish() {
	s, outstanding := p.status, p.outstandingTexts()
	if len(outstanding) > 0 && s.Retiring.OutstandingAcceptedAt == nil { // issued after the completion was requested
		p.step.Refused = "rotation complete is stopped: the old CA has issued more certificates: " +
			strings.Join(outstanding, "; ")
		s.LastOperation = &v1alpha1.OperationStatus{
			Name: v1alpha1.OperationComplete, Time: metav1.NewMicroTime(p.facts.Now), Result: v1alpha1.Refused, Message: p.step.Refused,
		}
		p.enter(v1alpha1.Prepared)
		return
	}
	if !p.facts.sealed(s.Retiring) {
		s.LedgerClosedAt = nil
		p.act(Seal)
		return
	}
	if len(outstanding) > 0 { // a late signer may still issue what it has reserved
		if s.LedgerClosedAt == nil {
			s.LedgerClosedAt = p.now()
		}
		if quiet := s.LedgerClosedAt.Add(ledger.QuietAfter); quiet.After(p.facts.Now) {
			p.wait("every signer must learn that the ledger of the CA %s is closed, which takes until %s",
				s.Retiring.KeyID, quiet.UTC().Format(time.RFC3339))
			return
		}
	}
	s.UnpublishedAt, s.Intent = p.now(), ""
}

// waitForRefusal waits until every API server refuses the retiring CA, and destroys its key.
func (p *planner) waitForRefusal() {
	switch {
	case !p.refusalProvable():
	case p.facts.Secret.Retiring == nil:
		p.waitForPrunedCA()
	default:
		p.status.WaitingFor = append(p.status.WaitingFor, p.facts.RetiringRefused.Lacks()...)
		if p.facts.Kept && len(p.status.WaitingFor) == 0 {
			p.act(Prune)
			return
		}
	}
	if len(p.status.WaitingFor) == 0 && p.step.Action == None {
		p.act(DestroyRetiring)
	}
}

// waitForPrunedCA waits until no API server publishes the retiring CA any more. Without its key, no probe is possible.
// An API server whose file still has the CA publishes it again within a minute.
func (p *planner) waitForPrunedCA() {
	if p.facts.Kept {
		p.status.PrunedAt = p.now()
		p.act(Prune)
		return
	}
	if p.status.PrunedAt == nil {
		p.status.PrunedAt = p.now()
	}
	if settled := p.status.PrunedAt.Add(p.facts.SettleFor); settled.After(p.facts.Now) {
		p.wait("API servers must not publish the retiring CA %s again for %s, until %s",
			p.status.Retiring.KeyID, p.facts.SettleFor, settled.UTC().Format(time.RFC3339))
	}
}

// refusalProvable reports whether a refusal would prove anything. Every verifier refuses an expired CA.
func (p *planner) refusalProvable() bool {
	return p.status.Retiring.NotAfter.After(p.facts.Now) && askedToRefuse(p.spec.Signers, p.status.Retiring, p.facts)
}

// planCompleted waits until a rotation is requested, the administrator brings a CA, or spec.rotateAfter is over:
//  1. The candidate of a rotation that was rolled back is dropped, and no other CA.
//  2. An edited Secret stops the rotation.
//  3. A renewed certificate is noted, which the manager makes or the administrator brings.
//  4. A CA that the administrator brings becomes the candidate.
//  5. A requested operation is answered.
//  6. A lost signing pair waits for the administrator.
//  7. The Secret gets its permit, a due rotation starts, and the bundle is published.
//  8. A renewed certificate signs.
func (p *planner) planCompleted() {
	if p.candidateMissing() { // it is dropped
		p.status.Candidate, p.status.Intent = nil, ""
	}
	switch {
	case p.status.Candidate != nil:
		p.act(DropCandidate)
	case p.renewed(), p.checkSecret(), p.noteRenewed():
	case p.brought():
		p.adopt()
	case p.status.Intent == string(MakeRenewed) && p.facts.NotRenewable == nil && v1alpha1.SameCA(p.facts.Secret.TLS, p.status.Signing):
		p.act(MakeRenewed)
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
		if p.status.Renewed != nil {
			p.proveRenewed()
		}
	}
}

// renew makes a renewed certificate, unless only another CA can.
func (p *planner) renew() {
	if p.facts.NotRenewable != nil {
		p.refuseOperation("%v", p.facts.NotRenewable)
		return
	}
	p.acceptOperation()
	p.act(MakeRenewed)
}

// renewed records that the renewed certificate signs, and reports whether it does. All else that is known about the CA is
// about its key, and stays.
func (p *planner) renewed() bool {
	s := p.status
	if !v1alpha1.SameCA(p.facts.Secret.Signing, s.Renewed) {
		return false
	}
	earlier := v1alpha1.EarlierCertificate{Certificate: s.Signing.Certificate, NotAfter: s.Signing.NotAfter}
	s.Signing.Earlier = slices.Insert(s.Signing.Earlier, 0, earlier)
	s.Signing.Earlier = s.Signing.Earlier[:min(len(s.Signing.Earlier), maxEarlier)]
	s.Signing.Certificate, s.Signing.Fingerprint, s.Signing.NotAfter = s.Renewed.Certificate, s.Renewed.Fingerprint, s.Renewed.NotAfter
	s.Renewed, s.Intent = nil, ""
	return true
}

// noteRenewed records the renewed certificate in the pair tls, and reports whether it is another one than before, or none.
func (p *planner) noteRenewed() bool {
	var found *v1alpha1.CAStatus
	if p.facts.Secret.Renews && p.refuseTLS() == nil {
		found = p.facts.Secret.TLS.DeepCopy()
		found.Generation = p.status.Signing.Generation
	}
	if found == p.status.Renewed || v1alpha1.SameCA(found, p.status.Renewed) { // the former if both are nil
		return false
	}
	p.status.Renewed, p.status.Intent = found, ""
	return true
}

// proveRenewed waits until an API server publishes the renewed certificate, and then signs with it. A probe could not show that
// API servers trust it: until the present certificate expires, they accept the same certificates with either. So it need not wait for
// the others.
func (p *planner) proveRenewed() {
	switch why := p.facts.Secret.Unfit[p.status.Renewed.Fingerprint]; {
	case why != nil:
		p.wait("the renewed certificate cannot sign: %v", why)
	case asksAPIServers(p.spec.Signers) && !p.facts.RenewedSeen:
		p.wait("no API server publishes the renewed certificate in ConfigMap kube-system/extension-apiserver-authentication: check the " +
			"client CA files")
	default:
		p.act(TakeRenewed)
	}
}

// rotationDue reports whether the signing CA has signed for spec.rotateAfter, which is an hour at least.
func (p *planner) rotationDue() bool {
	return p.spec.RotateAfter != nil && p.status.Signing.SignsSince != nil && p.status.Renewed == nil &&
		p.facts.Now.Sub(p.status.Signing.SignsSince.Time) >= max(p.spec.RotateAfter.Duration, time.Hour)
}
