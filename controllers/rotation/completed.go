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
