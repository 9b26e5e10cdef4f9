package rotation

import (
	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// begin finds or makes the first CA. It is a candidate like any other; with one that its owner has brought, the owner has
// said that those trust it who can't be asked.
func (m *machine) begin() {
	switch signing := m.f.Ring.Signing; {
	case m.f.Operation != "":
		m.refuse("the first CA does not sign yet")
	case signing != nil && m.f.SigningSealed:
		m.wait("another CA in signing.crt of the Secret, or none: %s has retired here before", signing.KeyID)
	case signing != nil:
		m.resume()
	default:
		m.first()
	}
}

func (m *machine) first() {
	ring := m.f.Ring
	switch {
	case ring.Candidate != nil && m.misplaced() == "":
		m.s.Generation = max(m.s.Generation, 1)
		m.s.Candidate = m.noteCA(ring.Candidate, m.s.Generation)
		m.s.Candidate.AdoptedAt = m.now() // whoever has made it
		m.enter(v1alpha1.Preparing)
	case ring.TLS != nil && m.unusable() != "":
		m.wait("another CA in tls.crt and tls.key of the Secret: %s", m.unusable())
	case ring.TLS != nil:
		m.adopt()
	case ring.TLSProblem != "":
		m.wait("a CA in the Secret that can be used: %s", ring.TLSProblem)
	case m.spec.From != "" && m.f.From == nil:
		m.wait("SigningAuthority %s to sign", m.spec.From)
	case m.spec.From != "":
		m.act(CopyFrom)
	default:
		m.start()
	}
}

// resume reads from the Secret what an authority knew whose status is lost. What was known of adoption is lost too.
func (m *machine) resume() {
	ring := m.f.Ring
	m.s.Generation = max(m.s.Generation, 1)
	adopted := func(found *CAFacts) *v1alpha1.CAStatus {
		one := m.noteCA(found, m.s.Generation)
		one.AdoptedAt = m.now()
		return one
	}
	m.s.Signing = adopted(ring.Signing)
	m.s.Signing.SignsSince = m.now()
	m.remember()
	switch {
	case ring.Candidate != nil && m.misplaced() == "":
		m.s.Generation++
		m.s.Candidate = adopted(ring.Candidate)
		m.enter(v1alpha1.Preparing)
	case ring.Retiring != nil && ring.Retiring.KeyID != ring.Signing.KeyID:
		m.s.Retiring = adopted(ring.Retiring)
		m.enter(v1alpha1.Prepared)
	default:
		m.enter(v1alpha1.Completed)
	}
}
