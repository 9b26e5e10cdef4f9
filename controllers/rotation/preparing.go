package rotation

import (
	"slices"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// start begins to make a CA.
func (m *machine) start() {
	m.s.Generation++
	m.s.Candidate = nil
	m.enter(v1alpha1.Preparing)
	m.act(MakeCandidate)
}

// adopt takes a CA that its owner has put into the Secret as the candidate.
func (m *machine) adopt() {
	m.s.Generation++
	m.enter(v1alpha1.Preparing)
	m.s.Candidate = m.noteCA(m.f.Ring.TLS, m.s.Generation)
	m.s.Candidate.AdoptedAt = m.now()
	if m.s.Signing == nil {
		m.confirm()
		if from := m.f.From; m.f.Ring.TLS.is(from) { // its ledger has come with it
			m.s.Candidate.AdoptedAt, m.s.Candidate.AttestedAt, m.s.Candidate.TrustConfirmedAt = from.AdoptedAt, from.AttestedAt, from.TrustConfirmedAt
			m.s.Candidate.Signers = slices.Clone(from.Signers)
		}
	}
	m.act(TakeCandidate)
}

// prepare has a candidate trusted, and then switches.
func (m *machine) prepare() {
	switch {
	case m.f.Ring.Candidate == nil && m.f.Ring.Signing.is(m.s.Candidate):
		m.switched()
	case m.lost():
	case m.reconsidered():
		m.adopt()
	case m.candidate():
	case m.preparing():
	case m.edited():
	default:
		m.prove()
	}
}

// reconsidered says whether the owner has put another CA into the Secret while none signs.
func (m *machine) reconsidered() bool {
	ring := m.f.Ring
	return ring.Signing == nil && ring.TLS != nil && !ring.TLS.is(m.s.Candidate) && !ring.TLS.is(m.s.Signing) && m.unusable() == ""
}

// candidate sees to it that there is one, and that it is the one that is noted.
func (m *machine) candidate() bool {
	ring := m.f.Ring
	switch {
	case ring.Candidate.is(m.s.Candidate):
		return false
	case ring.Candidate != nil && m.misplaced() == "":
		made := m.s.Intent == string(MakeCandidate)
		if m.s.Candidate, m.s.Intent = m.noteCA(ring.Candidate, m.s.Generation), ""; !made {
			m.s.Candidate.AdoptedAt = m.now() // whoever has put it there
		}
	case m.s.Candidate != nil && ring.TLS.is(m.s.Candidate):
		m.act(TakeCandidate)
	case m.s.Signing == nil && m.s.Candidate != nil && m.s.Candidate.AdoptedAt != nil: // others may have issued from it
		m.away()
	default:
		m.s.Candidate = nil // it was never trusted with anything
		m.act(MakeCandidate)
	}
	return true
}

// away waits for a candidate that its owner has brought, and which has gone before anything signed.
func (m *machine) away() {
	if m.f.Operation != "" {
		m.refuse("the CA %s is not in the Secret any more", m.s.Candidate.KeyID)
		return
	}
	m.wait("the CA %s to be put back into tls.crt and tls.key of the Secret, or another one: it is not there any more", m.s.Candidate.KeyID)
}

// switched notes that the candidate signs.
func (m *machine) switched() {
	m.s.Signing, m.s.Retiring, m.s.Candidate = m.s.Candidate, m.s.Signing, nil
	m.s.Signing.SignsSince = m.now()
	if m.s.Retiring == nil {
		m.enter(v1alpha1.Completed)
		return
	}
	m.enter(v1alpha1.Prepared)
}

// preparing follows an operation.
func (m *machine) preparing() bool {
	switch m.f.Operation {
	case "":
		return false
	case v1alpha1.TrustConfirmed:
		if !m.f.Published {
			m.refuse("the candidate is not published yet")
			break
		}
		m.confirm()
		m.take()
	case v1alpha1.AdoptionAttested:
		m.attest()
	case v1alpha1.RotateRollback:
		if m.f.Ring.Signing == nil {
			m.refuse("there is no CA to go back to; another one in tls.crt and tls.key of the Secret takes the place of the candidate")
			break
		}
		m.s.Candidate = nil
		m.enter(v1alpha1.Completed) // which drops what is left of it
		m.take()
	default:
		m.refuse("a candidate waits to be trusted")
	}
	return true
}

// prove waits until everybody trusts the candidate.
func (m *machine) prove() {
	switch {
	case !m.f.Permitted:
		m.act(Permit)
		return
	case !m.published():
		return
	case !m.f.Ring.Candidate.NotAfter.After(m.f.Now):
		m.wait("another candidate, as this one has ended: rotate-rollback, or if no CA signs yet another one in tls.crt and tls.key of the Secret")
		return
	case m.f.Ring.Retiring != nil:
		m.wait("retiring.crt and retiring.key to be removed from the Secret: they hold the CA %s, which no rotation has left there", m.f.Ring.Retiring.KeyID)
		return
	}
	m.trusted(m.f.Candidate)
	unconfirmed := slices.DeleteFunc(unasked(m.spec.Signers), func(name string) bool { return trustedFor(m.s.Candidate, name) })
	if len(unconfirmed) > 0 {
		m.wait("its owner to confirm that those who can't be asked trust the candidate %s (%s): operation %s",
			m.s.Candidate.KeyID, strings.Join(unconfirmed, ", "), v1alpha1.TrustConfirmed)
	}
	if len(m.step.Waiting) == 0 {
		m.s.Candidate.Signers = slices.Clone(m.spec.Signers)
		m.overwrites(Switch)
	}
}

// confirm notes that those who can't be asked trust the candidate, as its owner says: those of the signers that there are now.
func (m *machine) confirm() {
	m.s.Candidate.TrustConfirmedAt, m.s.Candidate.Signers = m.now(), unasked(m.spec.Signers)
}
