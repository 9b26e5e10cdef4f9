package rotation

import (
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// planCompleting makes sure that nobody trusts the old CA, and then destroys its key. Its order is the promise: the ledger is
// closed, then nothing may be outstanding, then it leaves what is published, then it is refused, then it is gone.
func (p *planner) planCompleting() {
	if p.facts.Operation != "" {
		p.refuseOperation("the old CA is leaving, and there is no way back")
		return
	}
	switch {
	case p.keyDestroyed():
		p.status.LastRetired, p.status.Retiring = p.status.Retiring, nil
		if p.status.LastRetired != nil {
			p.status.LastRetired.Certificate, p.status.LastCompletedAt = "", p.now()
		}
		p.enter(v1alpha1.Completed)
	case p.restoreSigningKey():
	case p.signingMissing() && p.facts.Secret.Retiring != nil: // a refusal is shown beside a certificate that is accepted
		p.waitForSigningKey("there is no way on but to remove retiring.crt and retiring.key from the Secret")
	case p.restoreTLS():
	case p.status.UnpublishedAt == nil:
		p.planUnpublish()
	case p.facts.RetiringOpen: // by who led before, and was late
		p.act(Seal)
	case !p.publishFirst():
	default:
		p.waitForRefusal()
	}
}

func (p *planner) keyDestroyed() bool {
	return p.status.Retiring == nil || p.facts.Secret.Retiring == nil && p.status.Intent == string(DestroyRetiring)
}

// planUnpublish asks before and after the ledger is closed, as only then nothing is added to it any more.
func (p *planner) planUnpublish() {
	switch left := p.outstandingTexts(); {
	case len(left) > 0 && p.status.Retiring.OutstandingAcceptedAt == nil: // issued after it was asked for
		p.step.Refused = "completion stops, as more was issued meanwhile: " + strings.Join(left, "; ")
		p.enter(v1alpha1.Prepared)
	case !p.facts.Sealed:
		p.status.LedgerClosedAt = nil
		p.act(Seal)
	case len(left) > 0 && !p.signersQuiet():
		p.wait("every signer to have seen that the ledger of the CA %s is closed", p.status.Retiring.KeyID)
	default:
		p.status.UnpublishedAt, p.status.Intent = p.now(), ""
	}
}

// signersQuiet says whether nothing more is issued of what was reserved in the ledger. Where nothing is left, what was reserved has
// ended too, and nobody waits.
func (p *planner) signersQuiet() bool {
	if p.status.LedgerClosedAt == nil {
		p.status.LedgerClosedAt = p.now()
	}
	return !p.status.LedgerClosedAt.Add(ledger.QuietAfter).After(p.facts.Now)
}

// waitForRefusal waits until every API server refuses the retiring CA, and destroys it.
func (p *planner) waitForRefusal() {
	switch {
	case !p.refusalProvable():
	case p.facts.Secret.Retiring == nil:
		p.waitForPrunedCA()
	default:
		p.waitForProof(p.facts.RetiringRefused)
		if p.facts.Kept && len(p.step.Waiting) == 0 {
			p.act(Prune)
			return
		}
		for _, server := range p.facts.Holding {
			p.wait("aggregated API server %s to refuse the retiring CA %s", server, p.status.Retiring.KeyID)
		}
	}
	if len(p.step.Waiting) == 0 && p.step.Action == None {
		p.act(DestroyRetiring)
	}
}

// waitForPrunedCA waits until no API server publishes the retiring CA any more, whose key is lost, so that nobody can be shown a
// certificate of it: what an API server's file still has, it puts back within a minute.
func (p *planner) waitForPrunedCA() {
	if p.facts.Kept {
		p.status.PrunedAt = p.now()
		p.act(Prune)
		return
	}
	if p.status.PrunedAt == nil {
		p.status.PrunedAt = p.now()
	}
	if p.status.PrunedAt.Add(p.facts.SettleFor).After(p.facts.Now) {
		p.wait("API servers not to publish the retiring CA %s again, for %s", p.status.Retiring.KeyID, p.facts.SettleFor)
	}
}

// refusalProvable says whether a refusal would prove anything: a CA that has ended is refused by everybody, and one that another
// authority keeps must be trusted further on.
func (p *planner) refusalProvable() bool {
	return p.status.Retiring.NotAfter.After(p.facts.Now) && len(p.facts.Sharing) == 0 && askedToRefuse(p.spec.Signers, p.facts)
}
