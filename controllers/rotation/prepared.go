package rotation

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// DefaultAdopted is the longest lifetime of what kube-controller-manager and kubeadm issue, if nobody says otherwise.
const DefaultAdopted = 365 * 24 * time.Hour

// planPrepared has both CAs trusted, until its owner goes on or back.
func (p *planner) planPrepared() {
	switch {
	case p.status.Retiring == nil || p.status.Retiring.KeyID == p.status.Signing.KeyID:
		p.status.Retiring = nil
		p.enter(v1alpha1.Completed)
	case p.swappedBack():
		p.status.Signing, p.status.Retiring = p.status.Retiring, p.status.Signing
		p.status.Signing.SignsSince, p.status.Signing.OutstandingAcceptedAt = p.now(), nil
		p.status.Intent = ""
	case p.restoreSigningKey():
	case p.continueRollback():
	case p.restoreTLS():
	case p.preparedOperation():
	case p.signingMissing():
		p.waitForSigningKey("rotate-rollback has the CA sign that retires")
	case !p.facts.Permitted:
		p.act(Permit)
	case p.publishFirst():
		p.status.Intent = ""
		p.waitForTrust(p.facts.Signing)
		p.step.Waiting = append(p.step.Waiting, p.trustedAbove()...)
		p.waitForOutstanding()
		p.waitForNextCA()
	}
	p.waitForRetiringKey()
}

// swappedBack says whether the retiring CA signs again, be it by a Secret from a backup.
func (p *planner) swappedBack() bool {
	ring := p.facts.Secret
	return ring.Signing.is(p.status.Retiring) && (ring.Retiring.is(p.status.Signing) || ring.Retiring == nil && !ring.TLS.is(p.status.Signing))
}

// continueRollback opens the ledger of what may be gone back to, once it is published, and goes back where that was noted.
func (p *planner) continueRollback() bool {
	switch {
	case p.facts.Sealed && p.facts.Published:
		p.act(Unseal)
	case p.status.Intent != string(SwapBack) || !p.facts.Secret.Retiring.is(p.status.Retiring) || p.facts.Operation != "":
		return false
	case len(p.missingFrom(p.facts.RetiringTrusted)) > 0: // it was proven before the process died
		p.waitForTrust(p.facts.RetiringTrusted)
	default:
		p.actOnSecret(SwapBack)
	}
	return true
}

// waitForRetiringKey says that what should retire is not there: what it has issued is still trusted as long as it is published.
func (p *planner) waitForRetiringKey() {
	if p.status.Retiring != nil && p.facts.Secret.Retiring == nil && p.status.Phase == v1alpha1.Prepared && p.facts.Secret.Signing.is(p.status.Signing) {
		p.wait("the retiring CA %s: it is not in the Secret any more, so nobody can be shown that it is refused", p.status.Retiring.KeyID)
	}
}

func (p *planner) preparedOperation() bool {
	switch p.facts.Operation {
	case "":
		return false
	case v1alpha1.RotateComplete:
		p.planCompletion()
	case v1alpha1.RotateRollback:
		p.planRollback()
	case v1alpha1.OutstandingAccepted:
		p.status.Retiring.OutstandingAcceptedAt = p.now()
		p.acceptOperation()
	case v1alpha1.AdoptionAttested:
		p.attest()
	default:
		p.refuseOperation("a rotation is under way")
	}
	return true
}

// planRollback has the retiring CA sign again, if that breaks nothing.
func (p *planner) planRollback() {
	retiring, signing, missing := p.status.Retiring, p.status.Signing, p.missingFrom(p.facts.RetiringTrusted)
	switch {
	case !p.signingMissing() && signing.Generation < retiring.Generation && signing.NotAfter.After(p.facts.Now):
		p.refuseOperation("the CA %s signs again already; rotate-complete leaves %s", signing.KeyID, retiring.KeyID)
	case !p.facts.Secret.Retiring.is(retiring):
		p.refuseOperation("the CA %s is not in the Secret any more", retiring.KeyID)
	case !retiring.NotAfter.After(p.facts.Now):
		p.refuseOperation("the CA %s has ended", retiring.KeyID)
	case p.waitForSettling(p.facts.RetiringTrusted):
	case len(missing) > 0:
		p.refuseOperation("not every API server is known to trust the CA %s now: %s; ask again when they are", retiring.KeyID, strings.Join(missing, "; "))
	case p.facts.Sealed:
		p.refuseOperation("the CA %s is not published yet", retiring.KeyID)
	default:
		p.rollBack()
	}
}

// rollBack notes that API servers trust the retiring CA, as is proven just now, and goes back to it.
func (p *planner) rollBack() {
	for _, name := range p.spec.Signers {
		if verifiedByAPIServers(name) && !trustedFor(p.status.Retiring, name) {
			p.status.Retiring.Signers = append(p.status.Retiring.Signers, name)
		}
	}
	p.acceptOperation()
	p.act(SwapBack)
}

// waitForSettling leaves the operation where it is until all API servers have given the answer of proof for long enough, if they do.
func (p *planner) waitForSettling(proof Proof) bool {
	if !proof.Settling || !AsksAPIServers(p.spec.Signers) {
		return false
	}
	p.wait("all API servers to give the same answer for long enough, to follow %s: %s", p.facts.Operation, strings.Join(proof.Missing, "; "))
	return true
}

// missingFrom is what proof lacks, if API servers have a say.
func (p *planner) missingFrom(proof Proof) []string {
	before := p.step.Waiting
	p.step.Waiting = nil
	p.waitForTrust(proof)
	missing := p.step.Waiting
	p.step.Waiting = before
	return missing
}

// planCompletion leaves the old CA if nobody is left behind. A bundle that is not as it should be is published first, as it
// is right after a rollback.
func (p *planner) planCompletion() {
	if !p.facts.Published && p.status.Intent != string(Publish) {
		p.act(Publish)
		return
	}
	switch missing := p.completionBlockers(); {
	case len(missing) > 0:
		p.refuseOperation("%s", strings.Join(missing, "; "))
	case p.waitForSettling(p.facts.Signing):
	default:
		p.enter(v1alpha1.Completing)
		p.acceptOperation()
	}
}

// completionBlockers is what stands in the way of a completion, but for time.
func (p *planner) completionBlockers() []string {
	missing := p.trustedAbove()
	switch {
	case !p.status.Retiring.NotAfter.After(p.facts.Now): // there is nothing to go back to
	case !p.signingMissing() && !p.facts.Signing.Settling:
		missing = append(missing, p.missingFrom(p.facts.Signing)...)
	case !p.signingMissing():
	case p.facts.Secret.Retiring != nil:
		missing = append(missing, fmt.Sprintf("the CA %s is not in the Secret any more: put it back, or have %s sign by %s", p.status.Signing.KeyID, p.status.Retiring.KeyID, v1alpha1.RotateRollback))
	}
	if !p.facts.Published {
		missing = append(append(missing, "the bundle is not published"), p.facts.Unpublished...)
	}
	if p.status.Retiring.OutstandingAcceptedAt == nil {
		missing = append(missing, p.outstandingTexts()...)
	}
	return missing
}

// above names the CAs that must leave first what API servers trust: below them the retiring one would never be refused.
func (p *planner) trustedAbove() []string {
	if len(p.facts.Above) == 0 || !p.refusalProvable() {
		return nil
	}
	return []string{fmt.Sprintf("API servers to trust no CA above the retiring %s, as they would never refuse it: take %s out of their client CA files, and then out of ConfigMap kube-system/extension-apiserver-authentication",
		p.status.Retiring.KeyID, strings.Join(p.facts.Above, ", "))}
}

// waitForOutstanding waits for what still lives on the retiring CA.
func (p *planner) waitForOutstanding() {
	if p.status.Retiring.OutstandingAcceptedAt == nil {
		p.step.Waiting = append(p.step.Waiting, p.outstandingTexts()...)
	}
	if len(p.step.Waiting) == 0 {
		p.wait("its owner: operation %s, or %s", v1alpha1.RotateComplete, v1alpha1.RotateRollback)
	}
}

// outstandingTexts names what lives on the retiring CA.
func (p *planner) outstandingTexts() []string {
	var all []string
	for _, one := range Outstanding(p.spec, p.status.Retiring, p.facts) {
		count := ""
		if one.Count > 0 {
			count = fmt.Sprintf("up to %d ", one.Count)
		}
		what := "of " + one.Signer
		if one.Signer == "" {
			what = "that others have issued"
		}
		all = append(all, fmt.Sprintf("%scertificates %s by the CA %s live until %s", count, what, p.status.Retiring.KeyID, one.Until.UTC().Format(time.RFC3339)))
	}
	return all
}

// Outstanding is what may live on retiring at f.Now: what the ledger has, and what others may have issued before it was
// adopted. Nothing outlives the CA itself.
func Outstanding(spec *v1alpha1.SigningAuthoritySpec, retiring *v1alpha1.CAStatus, f Facts) []v1alpha1.Outstanding {
	if retiring == nil || !retiring.NotAfter.After(f.Now) {
		return nil
	}
	var all []v1alpha1.Outstanding
	add := func(one v1alpha1.Outstanding) {
		if one.Until.After(retiring.NotAfter.Time) {
			one.Until = retiring.NotAfter
		}
		if one.Until.After(f.Now) {
			all = append(all, one)
		}
	}
	for _, one := range f.Outstanding {
		add(one)
	}
	if retiring.AdoptedAt != nil && retiring.AttestedAt == nil {
		longest := DefaultAdopted
		if spec.Lifetimes.Adopted != nil {
			longest = spec.Lifetimes.Adopted.Duration
		}
		add(v1alpha1.Outstanding{Until: metav1.NewTime(retiring.AdoptedAt.Add(longest))})
	}
	return all
}
