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
	case !m.f.Permitted:
		m.act(Permit)
	case m.due():
		m.start()
	case m.published():
		m.s.Intent = ""
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
	case m.f.Sealed: // it has left, and is from a backup
		m.act(DestroyRetiring)
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

// lost waits for a signing pair that has gone from the Secret: another one would be trusted by nobody.
func (m *machine) lost() bool {
	ring := m.f.Ring
	switch {
	case m.s.Signing == nil || ring.Signing.is(m.s.Signing):
		return false
	case ring.TLS.is(m.s.Signing) && ring.Signing.is(m.s.Retiring):
		m.act(RestoreBoth)
	case ring.TLS.is(m.s.Signing):
		m.act(RestoreSigning)
	default:
		m.wait("the CA %s to be put back into tls.crt and tls.key of the Secret, from a backup: it is not there any more", m.s.Signing.KeyID)
	}
	return true
}

// edited puts back what signs, while there is no place for another CA.
func (m *machine) edited() bool {
	ring := m.f.Ring
	if m.s.Signing == nil || ring.TLS.same(ring.Signing) || ring.TLS.same(ring.Candidate) {
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
		return "there was nothing"
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
	case m.f.TLSRetired:
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
