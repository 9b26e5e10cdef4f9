package rotation

import (
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// begin finds or makes the first CA. It is a candidate like any other; with one that its owner has brought, the owner has
// said that those trust it who can't be asked.
func (m *machine) begin() {
	if m.f.Operation != "" {
		m.refuse("the first CA does not sign yet")
		return
	}
	m.first()
}

func (m *machine) first() {
	ring := m.f.Ring
	switch {
	case ring.Signing != nil && m.f.SigningSealed:
		m.wait("another CA in signing.crt of the Secret, or none: %s has retired here before", ring.Signing.KeyID)
	case ring.Signing != nil:
		m.resume()
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
	m.s.Signing.SignsSince, m.s.Signing.Signers = m.now(), slices.Clone(ring.Told)
	switch {
	case ring.Candidate != nil && m.misplaced() == "":
		m.s.Generation++
		m.s.Candidate = adopted(ring.Candidate)
		m.enter(v1alpha1.Preparing)
	case ring.Retiring != nil:
		m.s.Retiring = adopted(ring.Retiring)
		m.enter(v1alpha1.Prepared)
	default:
		m.enter(v1alpha1.Completed)
	}
}

func (m *machine) enter(phase v1alpha1.Phase) {
	m.s.Phase, m.s.Intent, m.s.LedgerClosedAt = phase, "", nil
	switch phase {
	case v1alpha1.Preparing:
		m.s.InitiatedAt, m.s.PreparedAt, m.s.CompletionInitiatedAt, m.s.CompletedAt, m.s.UnpublishedAt = m.now(), nil, nil, nil, nil
	case v1alpha1.Prepared:
		m.s.PreparedAt, m.s.CompletionInitiatedAt = m.now(), nil
	case v1alpha1.Completing:
		m.s.CompletionInitiatedAt = m.now()
	case v1alpha1.Completed:
		m.s.CompletedAt, m.s.UnpublishedAt = m.now(), nil
	case v1alpha1.New:
	}
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

// start begins to make a CA.
func (m *machine) start() {
	m.s.Generation++
	m.s.Candidate = nil
	m.enter(v1alpha1.Preparing)
	m.act(MakeCandidate)
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
		m.s.Candidate, m.s.Intent = m.noteCA(ring.Candidate, m.s.Generation), ""
	case m.s.Candidate != nil && ring.TLS.is(m.s.Candidate):
		m.act(TakeCandidate)
	default:
		m.s.Candidate = nil // it was never trusted with anything
		m.act(MakeCandidate)
	}
	return true
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
			m.refuse("there is no CA to go back to")
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
		m.wait("another candidate: this one has ended; rotate-rollback")
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

// added waits for a CA that signs for signers that came when the one that signs was proven already.
func (m *machine) added() {
	added := slices.DeleteFunc(slices.Clone(m.spec.Signers), func(name string) bool { return trustedFor(m.s.Signing, name) })
	if len(added) > 0 {
		m.wait("the next CA, to sign for %s too: it is not known of those who verify its certificates that they trust the CA %s", strings.Join(added, ", "), m.s.Signing.KeyID)
	}
}

// trusted waits for the API servers, if they verify what any of the signers issues.
func (m *machine) trusted(proof Proof) {
	if AsksAPIServers(m.spec.Signers) {
		m.unproven(proof)
	}
}

func (m *machine) unproven(proof Proof) {
	if proof.Proven {
		return
	}
	if len(proof.Missing) == 0 {
		m.wait("every API server to be asked")
	}
	m.step.Waiting = append(m.step.Waiting, proof.Missing...)
}

// AsksAPIServers says whether API servers verify what any of signers issues.
func AsksAPIServers(signers []string) bool { return slices.ContainsFunc(signers, byAPIServers) }

// unasked are the signers whose verifiers can't be asked.
func unasked(signers []string) []string {
	return slices.DeleteFunc(slices.Clone(signers), byAPIServers)
}

// byAPIServers says whether API servers verify what signer issues.
func byAPIServers(signer string) bool {
	return signer == certificatesv1.KubeAPIServerClientSignerName || signer == certificatesv1.KubeAPIServerClientKubeletSignerName
}

// published has the bundle published first.
func (m *machine) published() bool {
	if !m.f.Published {
		m.step.Waiting = append(m.step.Waiting, m.f.Unpublished...)
		m.act(Publish)
	} else if m.s.Intent == string(Publish) {
		m.s.Intent = ""
	}
	return m.f.Published
}
