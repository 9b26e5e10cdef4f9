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
	switch {
	case m.s.Retiring == nil || m.s.Retiring.KeyID == m.s.Signing.KeyID:
		m.s.Retiring = nil
		m.enter(v1alpha1.Completed)
	case m.swapped():
		m.s.Signing, m.s.Retiring = m.s.Retiring, m.s.Signing
		m.s.Signing.SignsSince, m.s.Signing.OutstandingAcceptedAt = m.now(), nil
		m.s.Intent = ""
	case m.lost():
	case m.goingBack():
	case m.edited():
	case m.preparedOperation():
	case m.gone():
		m.waitForKey("rotate-rollback has the CA sign that retires")
	case !m.f.Permitted:
		m.act(Permit)
	case m.published():
		m.s.Intent = ""
		m.trusted(m.f.Signing)
		m.step.Waiting = append(m.step.Waiting, m.above()...)
		m.outstanding()
		m.added()
	}
	m.retiringGone()
}

// swapped says whether the retiring CA signs again, be it by a Secret from a backup.
func (m *machine) swapped() bool {
	ring := m.f.Ring
	return ring.Signing.is(m.s.Retiring) && (ring.Retiring.is(m.s.Signing) || ring.Retiring == nil && !ring.TLS.is(m.s.Signing))
}

// goingBack opens the ledger of what may be gone back to, once it is published, and goes back where that was noted.
func (m *machine) goingBack() bool {
	switch {
	case m.f.Sealed && m.f.Published:
		m.act(Unseal)
	case m.s.Intent != string(SwapBack) || !m.f.Ring.Retiring.is(m.s.Retiring) || m.f.Operation != "":
		return false
	case len(m.missing(m.f.RetiringTrusted)) > 0: // it was proven before the process died
		m.trusted(m.f.RetiringTrusted)
	default:
		m.overwrites(SwapBack)
	}
	return true
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
		m.rollBack()
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

// rollBack has the retiring CA sign again, if that breaks nothing.
func (m *machine) rollBack() {
	retiring, signing, missing := m.s.Retiring, m.s.Signing, m.missing(m.f.RetiringTrusted)
	switch {
	case !m.gone() && signing.Generation < retiring.Generation && signing.NotAfter.After(m.f.Now):
		m.refuse("the CA %s signs again already; rotate-complete leaves %s", signing.KeyID, retiring.KeyID)
	case !m.f.Ring.Retiring.is(retiring):
		m.refuse("the CA %s is not in the Secret any more", retiring.KeyID)
	case !retiring.NotAfter.After(m.f.Now):
		m.refuse("the CA %s has ended", retiring.KeyID)
	case m.settles(m.f.RetiringTrusted):
	case len(missing) > 0:
		m.refuse("not every API server is known to trust the CA %s now: %s; ask again when they are", retiring.KeyID, strings.Join(missing, "; "))
	case m.f.Sealed:
		m.refuse("the CA %s is not published yet", retiring.KeyID)
	default:
		m.goBack()
	}
}

// goBack notes that API servers trust the retiring CA, as is proven just now, and goes back to it.
func (m *machine) goBack() {
	for _, name := range m.spec.Signers {
		if byAPIServers(name) && !trustedFor(m.s.Retiring, name) {
			m.s.Retiring.Signers = append(m.s.Retiring.Signers, name)
		}
	}
	m.take()
	m.act(SwapBack)
}

// settles leaves the operation where it is until all API servers have given the answer of proof for long enough, if they do.
func (m *machine) settles(proof Proof) bool {
	if !proof.Settling || !AsksAPIServers(m.spec.Signers) {
		return false
	}
	m.wait("all API servers to give the same answer for long enough, to follow %s: %s", m.f.Operation, strings.Join(proof.Missing, "; "))
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

// startCompletion leaves the old CA if nobody is left behind. A bundle that is not as it should be is published first, as it
// is right after a rollback.
func (m *machine) startCompletion() {
	if !m.f.Published && m.s.Intent != string(Publish) {
		m.act(Publish)
		return
	}
	switch missing := m.lacking(); {
	case len(missing) > 0:
		m.refuse("%s", strings.Join(missing, "; "))
	case m.settles(m.f.Signing):
	default:
		m.enter(v1alpha1.Completing)
		m.take()
	}
}

// lacking is what stands in the way of a completion, but for time.
func (m *machine) lacking() []string {
	missing := m.above()
	switch {
	case !m.s.Retiring.NotAfter.After(m.f.Now): // there is nothing to go back to
	case !m.gone() && !m.f.Signing.Settling:
		missing = append(missing, m.missing(m.f.Signing)...)
	case !m.gone():
	case m.f.Ring.Retiring != nil:
		missing = append(missing, fmt.Sprintf("the CA %s is not in the Secret any more: put it back, or have %s sign by %s", m.s.Signing.KeyID, m.s.Retiring.KeyID, v1alpha1.RotateRollback))
	}
	if !m.f.Published {
		missing = append(append(missing, "the bundle is not published"), m.f.Unpublished...)
	}
	if m.s.Retiring.OutstandingAcceptedAt == nil {
		missing = append(missing, m.left()...)
	}
	return missing
}

// above names the CAs that must leave first what API servers trust: below them the retiring one would never be refused.
func (m *machine) above() []string {
	if len(m.f.Above) == 0 || !m.provable() {
		return nil
	}
	return []string{fmt.Sprintf("API servers to trust no CA above the retiring %s, as they would never refuse it: take %s out of their client CA files, and then out of ConfigMap kube-system/extension-apiserver-authentication",
		m.s.Retiring.KeyID, strings.Join(m.f.Above, ", "))}
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
