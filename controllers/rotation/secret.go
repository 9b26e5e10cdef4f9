package rotation

import (
	"fmt"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// signingMissing reports whether the CA that is to sign is not in signing.crt and signing.key.
func (p *planner) signingMissing() bool {
	return p.status.Signing != nil && !sameCA(p.facts.Secret.Signing, p.status.Signing)
}

// restoreSigningKey restores a missing signing pair from tls.crt and tls.key, or waits while another CA is in its
// place. It reports whether it does either.
func (p *planner) restoreSigningKey() bool {
	signing, secret := p.status.Signing, p.facts.Secret
	misplaced := sameCA(secret.Candidate, signing) || sameCA(secret.Retiring, signing)
	switch {
	case !p.signingMissing():
		return false
	case sameCA(secret.TLS, signing) && sameCA(secret.Signing, p.status.Retiring):
		p.act(RestoreBoth)
	case sameCA(secret.TLS, signing):
		p.act(RestoreSigning)
	case secret.Signing == nil && !misplaced:
		return false
	case p.facts.Operation != "":
		p.refuseOperation("the Secret is not as it was: the CA %s, which signs here, is not in signing.crt", signing.KeyID)
	case misplaced:
		p.wait("the CA %s to be put into tls.crt and tls.key of the Secret: it signs here, and is in the place of another",
			signing.KeyID)
	default:
		p.wait("the CA %s to be put back into tls.crt and tls.key of the Secret: signing.crt holds the CA %s, which does "+
			"not sign here; without a backup, remove signing.crt and signing.key", signing.KeyID, secret.Signing.KeyID)
	}
	return true
}

// waitForSigningKey waits for a missing signing pair. otherwise says what can be done without a backup.
func (p *planner) waitForSigningKey(otherwise string) {
	instead := ""
	if p.facts.Secret.TLS != nil || p.facts.Secret.TLSProblem != "" {
		instead = "; what is there instead is not taken: " + p.refuseTLS()
	}
	p.wait("the CA %s to be put back into tls.crt and tls.key of the Secret, from a backup: it is not there any more%s; "+
		"without a backup, %s", p.status.Signing.KeyID, instead, otherwise)
}

// restoreTLS puts the signing pair back into tls.crt and tls.key, and reports whether it was not there. Only
// planCompleted takes another CA from there.
func (p *planner) restoreTLS() bool {
	secret := p.facts.Secret
	known := sameCA(secret.TLS, secret.Signing) || sameCA(secret.TLS, secret.Candidate)
	if p.status.Signing == nil || secret.Signing == nil || known {
		return false
	}
	p.reportReplacedTLS()
	p.act(RestoreTLS)
	return true
}

// actOnSecret takes an action that writes tls.crt and tls.key too, and reports an edit that is lost by that.
func (p *planner) actOnSecret(action Action) {
	secret := p.facts.Secret
	known := sameCA(secret.TLS, secret.Signing) || sameCA(secret.TLS, secret.Candidate) ||
		sameCA(secret.TLS, secret.Retiring)
	if secret.TLSProblem != "" || secret.TLS != nil && !known {
		p.reportReplacedTLS()
	}
	p.act(action)
}

// reportReplacedTLS says that the content of tls.crt and tls.key is replaced, and why.
func (p *planner) reportReplacedTLS() {
	p.step.Refused = "what was put into tls.crt and tls.key of the Secret is not taken, and replaced by what signs: " +
		p.refuseTLS()
}

// refuseTLS returns why the content of tls.crt and tls.key can't be the candidate, or nothing.
func (p *planner) refuseTLS() string {
	secret := p.facts.Secret
	switch {
	case secret.TLSProblem != "":
		return secret.TLSProblem
	case secret.TLS == nil:
		return "there is nothing"
	case p.status.Phase != v1alpha1.Completed:
		return "a rotation is under way"
	case secret.TLS.KeyID == p.status.Signing.KeyID:
		return "it has the key that signs: who leaves a CA needs another key"
	default:
		return p.refuseAsCandidate()
	}
}

// refuseAsCandidate returns why the CA in tls.crt and tls.key can never sign here, or nothing.
func (p *planner) refuseAsCandidate() string {
	secret, last := p.facts.Secret, p.status.LastRetired
	switch {
	case !secret.TLS.NotAfter.After(p.facts.Now):
		return "it has ended"
	case p.facts.TLSRetired || last != nil && last.KeyID == secret.TLS.KeyID:
		return "it has retired here before, so those who left it would trust it again"
	default:
		return ""
	}
}

// refuseCandidate returns why the CA in candidate.crt can never sign here, or nothing. Such a CA is from a backup.
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

// secretEdits are the actions that change the Secret, each in one write. made is the pair of MakeCandidate or
// CopyFrom.
var secretEdits = map[Action]func(ring *keypair.Ring, made keypair.Pair){
	CopyFrom:      func(ring *keypair.Ring, made keypair.Pair) { ring.TLS = made }, // from where it is adopted
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

// removeCopies removes the candidate and the retiring pair if they have the key that signs, however it is written.
func removeCopies(ring *keypair.Ring) {
	signing, signingErr := ring.Signing.Load()
	for _, pair := range []*keypair.Pair{&ring.Candidate, &ring.Retiring} {
		authority, err := pair.Load()
		readable := err == nil && signingErr == nil
		if readable && authority.KeyID() == signing.KeyID() || !readable && pair.Equal(ring.Signing) {
			*pair = keypair.Pair{}
		}
	}
}

// editSecret returns ring after action. permit is what the signer is told from then on. Its cap applies while a
// candidate waits.
func editSecret(ring keypair.Ring, action Action, made keypair.Pair, permit keypair.Permit) (keypair.Ring, error) {
	edit, found := secretEdits[action]
	if !found {
		return ring, fmt.Errorf("%s changes no Secret", action)
	}
	edit(&ring, made)
	if action == CopyFrom {
		return ring, nil // nothing signs yet
	}
	if ring.Candidate.Empty() {
		permit.LifetimeCap = 0
	}
	ring.Permit = permit
	return ring, nil
}
