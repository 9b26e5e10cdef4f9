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

// prepared has both CAs trusted, until its owner goes on or back.
func (m *machine) prepared() {
	ring := m.f.Ring
	switch {
	case ring.Signing.is(m.s.Retiring) && ring.Retiring.is(m.s.Signing):
		m.s.Signing, m.s.Retiring = m.s.Retiring, m.s.Signing
		m.s.Signing.SignsSince, m.s.Signing.OutstandingAcceptedAt = m.now(), nil
		m.s.Intent = ""
	case m.s.Retiring == nil:
		m.enter(v1alpha1.Completed)
	case m.lost():
	case m.f.Sealed: // before anything else: it may be gone back to
		m.act(Unseal)
	case m.preparedOperation():
	case m.s.Intent == string(SwapBack):
		m.act(SwapBack)
	case m.edited():
	case !m.f.Permitted:
		m.act(Permit)
	case m.published():
		m.s.Intent = ""
		m.trusted(m.f.Signing)
		m.outstanding()
	}
	m.retiringGone()
}

// retiringGone says that what should retire is not there: what it has issued is still trusted as long as it is published.
func (m *machine) retiringGone() {
	if m.s.Retiring != nil && m.f.Ring.Retiring == nil && m.s.Phase == v1alpha1.Prepared && m.f.Ring.Signing.is(m.s.Signing) {
		m.wait("the retiring CA %s: it is not in the Secret any more, so nobody can be shown that it is refused", m.s.Retiring.KeyID)
	}
}

func (m *machine) preparedOperation() bool {
	switch m.f.Operation {
	case "":
		return false
	case v1alpha1.RotateComplete:
		m.startCompletion()
	case v1alpha1.RotateRollback:
		if m.s.Signing.Generation < m.s.Retiring.Generation {
			m.refuse("the CA %s signs again already; rotate-complete leaves %s", m.s.Signing.KeyID, m.s.Retiring.KeyID)
			break
		}
		if missing := m.missing(m.f.RetiringTrusted); m.f.Ring.Retiring == nil || len(missing) > 0 {
			m.refuse("not every API server is known to trust the CA %s now: %s; ask again when they are", m.s.Retiring.KeyID, strings.Join(missing, "; "))
			break
		}
		if !m.s.Retiring.NotAfter.After(m.f.Now) {
			m.refuse("the CA %s has ended", m.s.Retiring.KeyID)
			break
		}
		m.take()
		m.act(SwapBack)
	case v1alpha1.OutstandingAccepted:
		m.s.Retiring.OutstandingAcceptedAt = m.now()
		m.take()
	case v1alpha1.AdoptionAttested:
		m.attest()
	default:
		m.refuse("a rotation is under way")
	}
	return true
}

// missing is what proof lacks, if API servers have a say.
func (m *machine) missing(proof Proof) []string {
	before := m.step.Waiting
	m.step.Waiting = nil
	m.trusted(proof)
	missing := m.step.Waiting
	m.step.Waiting = before
	return missing
}

// startCompletion leaves the old CA if nobody is left behind.
func (m *machine) startCompletion() {
	missing := m.missing(m.f.Signing)
	if !m.f.Published {
		missing = append(missing, "the bundle is not published")
	}
	if m.s.Retiring.OutstandingAcceptedAt == nil {
		missing = append(missing, m.left()...)
	}
	if len(missing) > 0 {
		m.refuse("%s", strings.Join(missing, "; "))
		return
	}
	m.enter(v1alpha1.Completing)
	m.take()
}

// outstanding waits for what still lives on the retiring CA.
func (m *machine) outstanding() {
	if m.s.Retiring.OutstandingAcceptedAt == nil {
		m.step.Waiting = append(m.step.Waiting, m.left()...)
	}
	if len(m.step.Waiting) == 0 {
		m.wait("its owner: operation %s, or %s", v1alpha1.RotateComplete, v1alpha1.RotateRollback)
	}
}

// left names what lives on the retiring CA.
func (m *machine) left() []string {
	var all []string
	for _, one := range Outstanding(m.spec, m.s.Retiring, m.f) {
		count := ""
		if one.Count > 0 {
			count = fmt.Sprintf("up to %d ", one.Count)
		}
		what := "of " + one.Signer
		if one.Signer == "" {
			what = "that others have issued"
		}
		all = append(all, fmt.Sprintf("%scertificates %s by the CA %s live until %s", count, what, m.s.Retiring.KeyID, one.Until.UTC().Format(time.RFC3339)))
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

// complete makes sure that nobody trusts the old CA, and then destroys its key. Its order is the promise: the ledger is
// closed, then nothing may be outstanding, then it leaves what is published, then it is refused, then it is gone.
func (m *machine) complete() {
	if m.f.Operation != "" {
		m.refuse("the old CA is leaving, and there is no way back")
		return
	}
	switch {
	case m.s.Retiring == nil || m.f.Ring.Retiring == nil && m.s.Intent == string(DestroyRetiring):
		m.s.LastRetired, m.s.Retiring = m.s.Retiring, nil
		if m.s.LastRetired != nil {
			m.s.LastRetired.Certificate = ""
		}
		m.enter(v1alpha1.Completed)
	case m.lost():
	case m.edited():
	case m.s.UnpublishedAt == nil:
		m.unpublish()
	case !m.published():
	default:
		m.refused()
	}
}

// unpublish asks before and after the ledger is closed, as only then nothing is added to it any more.
func (m *machine) unpublish() {
	switch left := m.left(); {
	case len(left) > 0 && m.s.Retiring.OutstandingAcceptedAt == nil: // issued after it was asked for
		m.step.Refused = "completion stops, as more was issued meanwhile: " + strings.Join(left, "; ")
		m.enter(v1alpha1.Prepared)
	case !m.f.Sealed:
		m.act(Seal)
	default:
		m.s.UnpublishedAt, m.s.Intent = m.now(), ""
	}
}

// refused waits until every API server refuses the retiring CA, and destroys it.
func (m *machine) refused() {
	if m.provable() {
		m.unproven(m.f.RetiringRefused)
		if m.f.Kept && len(m.step.Waiting) == 0 {
			m.act(Prune)
			return
		}
		for _, server := range m.f.Holding {
			m.wait("aggregated API server %s to refuse the retiring CA %s", server, m.s.Retiring.KeyID)
		}
	}
	if len(m.step.Waiting) == 0 {
		m.act(DestroyRetiring)
	}
}

// provable says whether a refusal would prove anything: a CA that has ended is refused by everybody, and one that another
// authority keeps must be trusted further on.
func (m *machine) provable() bool {
	return m.f.Ring.Retiring != nil && m.s.Retiring.NotAfter.After(m.f.Now) && len(m.f.Sharing) == 0 && askedToRefuse(m.spec.Signers, m.f)
}

// askedToRefuse says whether API servers have verified what the retiring CA has issued, be it for signers that have left.
func askedToRefuse(signers []string, f Facts) bool {
	return AsksAPIServers(signers) || AsksAPIServers(f.RetiringSigners)
}
