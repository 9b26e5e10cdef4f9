package rotation

import (
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ledger"
)

// complete makes sure that nobody trusts the old CA, and then destroys its key. Its order is the promise: the ledger is
// closed, then nothing may be outstanding, then it leaves what is published, then it is refused, then it is gone.
func (m *machine) complete() {
	if m.f.Operation != "" {
		m.refuse("the old CA is leaving, and there is no way back")
		return
	}
	switch {
	case m.destroyed():
		m.s.LastRetired, m.s.Retiring = m.s.Retiring, nil
		if m.s.LastRetired != nil {
			m.s.LastRetired.Certificate, m.s.LastCompletedAt = "", m.now()
		}
		m.enter(v1alpha1.Completed)
	case m.lost():
	case m.gone() && m.f.Ring.Retiring != nil: // a refusal is shown beside a certificate that is accepted
		m.waitForKey("there is no way on but to remove retiring.crt and retiring.key from the Secret")
	case m.edited():
	case m.s.UnpublishedAt == nil:
		m.unpublish()
	case m.f.RetiringOpen: // by who led before, and was late
		m.act(Seal)
	case !m.published():
	default:
		m.refused()
	}
}

func (m *machine) destroyed() bool {
	return m.s.Retiring == nil || m.f.Ring.Retiring == nil && m.s.Intent == string(DestroyRetiring)
}

// unpublish asks before and after the ledger is closed, as only then nothing is added to it any more.
func (m *machine) unpublish() {
	switch left := m.left(); {
	case len(left) > 0 && m.s.Retiring.OutstandingAcceptedAt == nil: // issued after it was asked for
		m.step.Refused = "completion stops, as more was issued meanwhile: " + strings.Join(left, "; ")
		m.enter(v1alpha1.Prepared)
	case !m.f.Sealed:
		m.s.LedgerClosedAt = nil
		m.act(Seal)
	case len(left) > 0 && !m.quiet():
		m.wait("every signer to have seen that the ledger of the CA %s is closed", m.s.Retiring.KeyID)
	default:
		m.s.UnpublishedAt, m.s.Intent = m.now(), ""
	}
}

// quiet says whether nothing more is issued of what was reserved in the ledger. Where nothing is left, what was reserved has
// ended too, and nobody waits.
func (m *machine) quiet() bool {
	if m.s.LedgerClosedAt == nil {
		m.s.LedgerClosedAt = m.now()
	}
	return !m.s.LedgerClosedAt.Add(ledger.QuietAfter).After(m.f.Now)
}

// refused waits until every API server refuses the retiring CA, and destroys it.
func (m *machine) refused() {
	switch {
	case !m.provable():
	case m.f.Ring.Retiring == nil:
		m.unkept()
	default:
		m.unproven(m.f.RetiringRefused)
		if m.f.Kept && len(m.step.Waiting) == 0 {
			m.act(Prune)
			return
		}
		for _, server := range m.f.Holding {
			m.wait("aggregated API server %s to refuse the retiring CA %s", server, m.s.Retiring.KeyID)
		}
	}
	if len(m.step.Waiting) == 0 && m.step.Action == None {
		m.act(DestroyRetiring)
	}
}

// unkept waits until no API server publishes the retiring CA any more, whose key is lost, so that nobody can be shown a
// certificate of it: what an API server's file still has, it puts back within a minute.
func (m *machine) unkept() {
	if m.f.Kept {
		m.s.PrunedAt = m.now()
		m.act(Prune)
		return
	}
	if m.s.PrunedAt == nil {
		m.s.PrunedAt = m.now()
	}
	if m.s.PrunedAt.Add(m.f.SettleFor).After(m.f.Now) {
		m.wait("API servers not to publish the retiring CA %s again, for %s", m.s.Retiring.KeyID, m.f.SettleFor)
	}
}

// provable says whether a refusal would prove anything: a CA that has ended is refused by everybody, and one that another
// authority keeps must be trusted further on.
func (m *machine) provable() bool {
	return m.s.Retiring.NotAfter.After(m.f.Now) && len(m.f.Sharing) == 0 && askedToRefuse(m.spec.Signers, m.f)
}
