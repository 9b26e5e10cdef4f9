package rotation

import (
	"fmt"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keyring"
)

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

// turning are the actions that change the Secret, each in one write. made is the pair that MakeCandidate or CopyFrom brings.
var turning = map[Action]func(ring *keyring.Ring, made keyring.Pair){
	CopyFrom:      func(ring *keyring.Ring, made keyring.Pair) { ring.TLS = made }, // a candidate is taken from there
	MakeCandidate: func(ring *keyring.Ring, made keyring.Pair) { ring.Candidate = made },
	TakeCandidate: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Candidate = ring.TLS
		if !ring.Signing.Empty() {
			ring.TLS = ring.Signing
		}
	},
	DropCandidate: func(ring *keyring.Ring, _ keyring.Pair) { ring.Candidate = keyring.Pair{} },
	RestoreTLS: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.TLS = ring.Signing
		once(ring)
	},
	RestoreSigning: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Signing = ring.TLS
		once(ring)
	},
	RestoreBoth: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Retiring, ring.Signing = ring.Signing, ring.TLS
		once(ring)
	},
	Switch: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Retiring, ring.Signing, ring.TLS, ring.Candidate = ring.Signing, ring.Candidate, ring.Candidate, keyring.Pair{}
	},
	SwapBack: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Signing, ring.TLS, ring.Retiring = ring.Retiring, ring.Retiring, ring.Signing
	},
	Permit:          func(*keyring.Ring, keyring.Pair) {},
	DestroyRetiring: func(ring *keyring.Ring, _ keyring.Pair) { ring.Retiring = keyring.Pair{} },
}

// once has what signs be nothing else.
func once(ring *keyring.Ring) {
	for _, one := range []*keyring.Pair{&ring.Candidate, &ring.Retiring} {
		if sameKey(*one, ring.Signing) {
			*one = keyring.Pair{}
		}
	}
}

// sameKey says whether both have one key, however it is written.
func sameKey(one, other keyring.Pair) bool {
	first, err := one.Load()
	second, otherErr := other.Load()
	if err != nil || otherErr != nil {
		return one.Equal(other)
	}
	return first.KeyID() == second.KeyID()
}

// turn is ring after action, with what the signer is told from then on: permit, whose cap is for while a candidate waits.
func turn(ring keyring.Ring, action Action, made keyring.Pair, permit keyring.Permit) (keyring.Ring, error) {
	change, found := turning[action]
	if !found {
		return ring, fmt.Errorf("%s changes no Secret", action)
	}
	change(&ring, made)
	if action == CopyFrom {
		return ring, nil // nothing signs yet
	}
	if ring.Candidate.Empty() {
		permit.LifetimeCap = 0
	}
	ring.Permit = permit
	return ring, nil
}

// permitted says whether the signer has been told what permit says.
func permitted(ring keyring.Ring, permit keyring.Permit) bool {
	told, err := turn(ring, Permit, keyring.Pair{}, permit)
	return err == nil && ring.Permit.Equal(told.Permit)
}
