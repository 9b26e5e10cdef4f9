package rotation

import (
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// idle waits for a rotation to be asked for.
func (m *machine) idle() {
	ring := m.f.Ring
	switch {
	case m.lost():
	case m.leftOver():
	case !ring.TLS.same(ring.Signing) && m.unfit() == "":
		m.adopt()
	case m.edited():
	case m.idling():
	case m.gone():
		m.waitForKey("rotate-start makes another, which signs as soon as it is trusted; what the lost one has issued stays trusted")
	case !m.f.Permitted:
		m.act(Permit)
	case m.due():
		m.start()
	case m.published():
		m.s.Intent = ""
		m.added()
	}
}

// leftOver sees to what should not be in the Secret while no rotation is under way.
func (m *machine) leftOver() bool {
	ring := m.f.Ring
	switch {
	case ring.Candidate != nil:
		m.act(DropCandidate)
	case ring.Retiring == nil:
		return false
	case ring.Retiring.KeyID == ring.Signing.KeyID: // twice, by somebody's hand
		m.overwrites(RestoreTLS)
	case m.f.Sealed: // it has left, and is from a backup: again it goes only when it is refused
		m.s.Retiring = m.noteCA(ring.Retiring, m.s.Generation)
		m.enter(v1alpha1.Completing)
		m.s.UnpublishedAt = m.now()
	default: // it is not known what lives on it
		m.s.Retiring = m.noteCA(ring.Retiring, m.s.Generation)
		m.s.Retiring.AdoptedAt = m.now()
		m.enter(v1alpha1.Prepared)
	}
	return true
}

func (m *machine) idling() bool {
	switch m.f.Operation {
	case "":
		return false
	case v1alpha1.RotateStart:
		m.take()
		m.start()
	case v1alpha1.AdoptionAttested:
		m.attest()
	default:
		m.refuse("no rotation is under way")
	}
	return true
}

func (m *machine) due() bool {
	return m.spec.RotateAfter != nil && m.s.Signing.SignsSince != nil &&
		m.f.Now.Sub(m.s.Signing.SignsSince.Time) >= max(m.spec.RotateAfter.Duration, time.Hour)
}

// gone says whether the pair that signs is not in the Secret any more.
func (m *machine) gone() bool { return m.s.Signing != nil && !m.f.Ring.Signing.is(m.s.Signing) }

// lost has a signing pair that is gone put back from tls.crt and tls.key, and does nothing while another one is in its place, or
// it in that of another one.
func (m *machine) lost() bool {
	ring := m.f.Ring
	misplaced := ring.Candidate.is(m.s.Signing) || ring.Retiring.is(m.s.Signing)
	switch {
	case !m.gone():
		return false
	case ring.TLS.is(m.s.Signing) && ring.Signing.is(m.s.Retiring):
		m.act(RestoreBoth)
	case ring.TLS.is(m.s.Signing):
		m.act(RestoreSigning)
	case ring.Signing == nil && !misplaced:
		return false
	case m.f.Operation != "":
		m.refuse("the Secret is not as it was: the CA %s, which signs here, is not in signing.crt", m.s.Signing.KeyID)
	case misplaced:
		m.wait("the CA %s to be put into tls.crt and tls.key of the Secret: it signs here, and is in the place of another", m.s.Signing.KeyID)
	default:
		m.wait("the CA %s to be put back into tls.crt and tls.key of the Secret: signing.crt holds the CA %s, which does not sign here; without a backup, remove signing.crt and signing.key",
			m.s.Signing.KeyID, ring.Signing.KeyID)
	}
	return true
}

// waitForKey waits for a signing pair that is gone; otherwise is what can be done without it.
func (m *machine) waitForKey(otherwise string) {
	instead := ""
	if m.f.Ring.TLS != nil || m.f.Ring.TLSProblem != "" {
		instead = "; what is there instead is not taken: " + m.unfit()
	}
	m.wait("the CA %s to be put back into tls.crt and tls.key of the Secret, from a backup: it is not there any more%s; without a backup, %s",
		m.s.Signing.KeyID, instead, otherwise)
}

// edited puts back what signs, while there is no place for another CA.
func (m *machine) edited() bool {
	ring := m.f.Ring
	if m.s.Signing == nil || ring.Signing == nil || ring.TLS.same(ring.Signing) || ring.TLS.same(ring.Candidate) {
		return false
	}
	m.replaced()
	m.act(RestoreTLS)
	return true
}

// overwrites takes an action that writes tls.crt and tls.key too, and says so if an edit goes that was not looked at.
func (m *machine) overwrites(action Action) {
	ring := m.f.Ring
	if ring.TLSProblem != "" || ring.TLS != nil && !ring.TLS.same(ring.Signing) && !ring.TLS.same(ring.Candidate) && !ring.TLS.same(ring.Retiring) {
		m.replaced()
	}
	m.act(action)
}

// replaced says so of what is in tls.crt and tls.key.
func (m *machine) replaced() {
	m.step.Refused = "what was put into tls.crt and tls.key of the Secret is not taken, and replaced by what signs: " + m.unfit()
}

// unfit says why what is in tls.crt and tls.key can't be the candidate, or nothing.
func (m *machine) unfit() string {
	ring := m.f.Ring
	switch {
	case ring.TLSProblem != "":
		return ring.TLSProblem
	case ring.TLS == nil:
		return "there is nothing"
	case m.s.Phase != v1alpha1.Completed:
		return "a rotation is under way"
	case ring.TLS.KeyID == m.s.Signing.KeyID:
		return "it has the key that signs: who leaves a CA needs another key"
	default:
		return m.unusable()
	}
}

// unusable says why the CA in tls.crt and tls.key can't become one that signs, or nothing.
func (m *machine) unusable() string {
	switch {
	case !m.f.Ring.TLS.NotAfter.After(m.f.Now):
		return "it has ended"
	case m.f.TLSRetired || m.s.LastRetired != nil && m.s.LastRetired.KeyID == m.f.Ring.TLS.KeyID:
		return "it has retired here before, so those who left it would trust it again"
	default:
		return ""
	}
}

// misplaced says why the candidate in the Secret, which comes from a backup then, can't become one that signs, or nothing.
func (m *machine) misplaced() string {
	switch {
	case m.s.Signing != nil && m.f.Ring.Candidate.KeyID == m.s.Signing.KeyID:
		return "it has the key that signs"
	case m.f.CandidateRetired:
		return "it has retired here before"
	default:
		return ""
	}
}
