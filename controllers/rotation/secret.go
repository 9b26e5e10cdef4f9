package rotation

import (
	"fmt"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// signingMissing says whether the pair that signs is not in the Secret any more.
func (p *planner) signingMissing() bool {
	return p.status.Signing != nil && !p.facts.Secret.Signing.is(p.status.Signing)
}

// restoreSigningKey has a signing pair that is gone put back from tls.crt and tls.key, and does nothing while another one is in its place, or
// it in that of another one.
func (p *planner) restoreSigningKey() bool {
	ring := p.facts.Secret
	misplaced := ring.Candidate.is(p.status.Signing) || ring.Retiring.is(p.status.Signing)
	switch {
	case !p.signingMissing():
		return false
	case ring.TLS.is(p.status.Signing) && ring.Signing.is(p.status.Retiring):
		p.act(RestoreBoth)
	case ring.TLS.is(p.status.Signing):
		p.act(RestoreSigning)
	case ring.Signing == nil && !misplaced:
		return false
	case p.facts.Operation != "":
		p.refuseOperation("the Secret is not as it was: the CA %s, which signs here, is not in signing.crt", p.status.Signing.KeyID)
	case misplaced:
		p.wait("the CA %s to be put into tls.crt and tls.key of the Secret: it signs here, and is in the place of another", p.status.Signing.KeyID)
	default:
		p.wait("the CA %s to be put back into tls.crt and tls.key of the Secret: signing.crt holds the CA %s, which does not sign here; without a backup, remove signing.crt and signing.key",
			p.status.Signing.KeyID, ring.Signing.KeyID)
	}
	return true
}

// waitForSigningKey waits for a signing pair that is gone; otherwise is what can be done without it.
func (p *planner) waitForSigningKey(otherwise string) {
	instead := ""
	if p.facts.Secret.TLS != nil || p.facts.Secret.TLSProblem != "" {
		instead = "; what is there instead is not taken: " + p.refuseTLS()
	}
	p.wait("the CA %s to be put back into tls.crt and tls.key of the Secret, from a backup: it is not there any more%s; without a backup, %s",
		p.status.Signing.KeyID, instead, otherwise)
}

// restoreTLS puts back what signs, while there is no place for another CA.
func (p *planner) restoreTLS() bool {
	ring := p.facts.Secret
	if p.status.Signing == nil || ring.Signing == nil || ring.TLS.same(ring.Signing) || ring.TLS.same(ring.Candidate) {
		return false
	}
	p.reportReplacedTLS()
	p.act(RestoreTLS)
	return true
}

// actOnSecret takes an action that writes tls.crt and tls.key too, and says so if an edit goes that was not looked at.
func (p *planner) actOnSecret(action Action) {
	ring := p.facts.Secret
	if ring.TLSProblem != "" || ring.TLS != nil && !ring.TLS.same(ring.Signing) && !ring.TLS.same(ring.Candidate) && !ring.TLS.same(ring.Retiring) {
		p.reportReplacedTLS()
	}
	p.act(action)
}

// reportReplacedTLS says so of what is in tls.crt and tls.key.
func (p *planner) reportReplacedTLS() {
	p.step.Refused = "what was put into tls.crt and tls.key of the Secret is not taken, and replaced by what signs: " + p.refuseTLS()
}

// refuseTLS says why what is in tls.crt and tls.key can't be the candidate, or nothing.
func (p *planner) refuseTLS() string {
	ring := p.facts.Secret
	switch {
	case ring.TLSProblem != "":
		return ring.TLSProblem
	case ring.TLS == nil:
		return "there is nothing"
	case p.status.Phase != v1alpha1.Completed:
		return "a rotation is under way"
	case ring.TLS.KeyID == p.status.Signing.KeyID:
		return "it has the key that signs: who leaves a CA needs another key"
	default:
		return p.refuseAsCandidate()
	}
}

// refuseAsCandidate says why the CA in tls.crt and tls.key can't become one that signs, or nothing.
func (p *planner) refuseAsCandidate() string {
	switch {
	case !p.facts.Secret.TLS.NotAfter.After(p.facts.Now):
		return "it has ended"
	case p.facts.TLSRetired || p.status.LastRetired != nil && p.status.LastRetired.KeyID == p.facts.Secret.TLS.KeyID:
		return "it has retired here before, so those who left it would trust it again"
	default:
		return ""
	}
}

// refuseCandidate says why the candidate in the Secret, which comes from a backup then, can't become one that signs, or nothing.
func (p *planner) refuseCandidate() string {
	switch {
	case p.status.Signing != nil && p.facts.Secret.Candidate.KeyID == p.status.Signing.KeyID:
		return "it has the key that signs"
	case p.facts.CandidateRetired:
		return "it has retired here before"
	default:
		return ""
	}
}

// secretEdits are the actions that change the Secret, each in one write. made is the pair that MakeCandidate or CopyFrom brings.
var secretEdits = map[Action]func(ring *keypair.Ring, made keypair.Pair){
	CopyFrom:      func(ring *keypair.Ring, made keypair.Pair) { ring.TLS = made }, // a candidate is taken from there
	MakeCandidate: func(ring *keypair.Ring, made keypair.Pair) { ring.Candidate = made },
	TakeCandidate: func(ring *keypair.Ring, _ keypair.Pair) {
		ring.Candidate = ring.TLS
		if !ring.Signing.Empty() {
			ring.TLS = ring.Signing
		}
	},
	DropCandidate: func(ring *keypair.Ring, _ keypair.Pair) { ring.Candidate = keypair.Pair{} },
	RestoreTLS: func(ring *keypair.Ring, _ keypair.Pair) {
		ring.TLS = ring.Signing
		removeCopies(ring)
	},
	RestoreSigning: func(ring *keypair.Ring, _ keypair.Pair) {
		ring.Signing = ring.TLS
		removeCopies(ring)
	},
	RestoreBoth: func(ring *keypair.Ring, _ keypair.Pair) {
		ring.Retiring, ring.Signing = ring.Signing, ring.TLS
		removeCopies(ring)
	},
	Switch: func(ring *keypair.Ring, _ keypair.Pair) {
		ring.Retiring, ring.Signing, ring.TLS, ring.Candidate = ring.Signing, ring.Candidate, ring.Candidate, keypair.Pair{}
	},
	SwapBack: func(ring *keypair.Ring, _ keypair.Pair) {
		ring.Signing, ring.TLS, ring.Retiring = ring.Retiring, ring.Retiring, ring.Signing
	},
	Permit:          func(*keypair.Ring, keypair.Pair) {},
	DestroyRetiring: func(ring *keypair.Ring, _ keypair.Pair) { ring.Retiring = keypair.Pair{} },
}

// removeCopies has what signs be nothing else.
func removeCopies(ring *keypair.Ring) {
	for _, one := range []*keypair.Pair{&ring.Candidate, &ring.Retiring} {
		if sameKey(*one, ring.Signing) {
			*one = keypair.Pair{}
		}
	}
}

// sameKey says whether both have one key, however it is written.
func sameKey(one, other keypair.Pair) bool {
	first, err := one.Load()
	second, otherErr := other.Load()
	if err != nil || otherErr != nil {
		return one.Equal(other)
	}
	return first.KeyID() == second.KeyID()
}

// editSecret is ring after action, with what the signer is told from then on: permit, whose cap is for while a candidate waits.
func editSecret(ring keypair.Ring, action Action, pair keypair.Pair, permit keypair.Permit) (keypair.Ring, error) {
	change, found := secretEdits[action]
	if !found {
		return ring, fmt.Errorf("%s changes no Secret", action)
	}
	change(&ring, pair)
	if action == CopyFrom {
		return ring, nil // nothing signs yet
	}
	if ring.Candidate.Empty() {
		permit.LifetimeCap = 0
	}
	ring.Permit = permit
	return ring, nil
}

// hasPermit says whether the signer has been told what permit says.
func hasPermit(ring keypair.Ring, permit keypair.Permit) bool {
	told, err := editSecret(ring, Permit, keypair.Pair{}, permit)
	return err == nil && ring.Permit.Equal(told.Permit)
}
