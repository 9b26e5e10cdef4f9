package rotation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// signingMissing reports whether signing.crt and signing.key lack the signing CA.
func (p *planner) signingMissing() bool {
	return p.status.Signing != nil && !v1alpha1.SameCA(p.facts.Secret.Signing, p.status.Signing)
}

// checkSecret restores a missing signing pair from tls.crt and tls.key. It refuses any other pair that no step has
// written: an Event and the status name the repair. It reports whether it does either.
func (p *planner) checkSecret() bool {
	repairs := []string{p.repairSigning(), p.repairCandidate(), p.repairRetiring()}
	repairs = slices.DeleteFunc(repairs, func(repair string) bool { return repair == "" })
	switch {
	case p.signingMissing() && v1alpha1.SameCA(p.facts.Secret.TLS, p.status.Signing) && !p.retiringInPlaceOfSigning():
		p.act(RestoreSigning)
		return true
	case len(repairs) == 0:
		return false
	case p.facts.Operation != "":
		p.refuseOperation("the Secret is not as the rotation left it: %s", strings.Join(repairs, "; "))
	case !slices.Equal(p.before.WaitingFor, repairs): // otherwise the Event was written before
		p.step.Refused = "the Secret is not as the rotation left it: " + strings.Join(repairs, "; ")
	}
	p.status.WaitingFor = repairs
	return true
}

// retiringInPlaceOfSigning reports whether the only copy of the retiring pair is in signing.crt and signing.key.
func (p *planner) retiringInPlaceOfSigning() bool {
	return v1alpha1.SameCA(p.facts.Secret.Signing, p.status.Retiring) && p.facts.Secret.Retiring == nil
}

// repairSigning returns the repair of signing.crt and signing.key, or nothing.
func (p *planner) repairSigning() string {
	signing, secret := p.status.Signing, p.facts.Secret
	switch {
	case !p.signingMissing():
		return ""
	case p.retiringInPlaceOfSigning():
		return fmt.Sprintf("move signing.crt and signing.key of the Secret to retiring.crt and retiring.key: "+
			"they hold the retiring CA %s", secret.Signing.KeyID)
	case secret.Signing != nil:
		return fmt.Sprintf("put the CA %s back into tls.crt and tls.key of the Secret: signing.crt holds the CA %s, "+
			"which does not sign here; without a backup, remove signing.crt and signing.key",
			signing.KeyID, secret.Signing.KeyID)
	case v1alpha1.SameCA(secret.Candidate, signing) || v1alpha1.SameCA(secret.Retiring, signing):
		return fmt.Sprintf("put the CA %s into tls.crt and tls.key of the Secret: it signs here, but the Secret has it "+
			"in the place of another CA", signing.KeyID)
	default: // the pair is lost, which each phase handles
		return ""
	}
}

// repairCandidate returns the repair of candidate.crt and candidate.key, or nothing. In phases without a candidate, the
// pair is dropped or ignored.
func (p *planner) repairCandidate() string {
	s, secret := p.status, p.facts.Secret
	if secret.Candidate == nil || s.Phase != v1alpha1.New && s.Phase != v1alpha1.Preparing {
		return ""
	}
	var why string
	switch signing := cmp.Or(s.Signing, secret.Signing); {
	case p.facts.sealed(secret.Candidate):
		why = "which has retired here"
	case p.facts.Others[secret.Candidate.KeyID] != "":
		why = "which is a CA of SigningAuthority " + p.facts.Others[secret.Candidate.KeyID]
	case signing != nil && secret.Candidate.KeyID == signing.KeyID:
		why = "which has the key of the signing CA"
	case s.Candidate != nil && !v1alpha1.SameCA(secret.Candidate, s.Candidate) && !v1alpha1.SameCA(secret.TLS, s.Candidate):
		why = "which no rotation has put there"
	default:
		return ""
	}
	return remove("candidate", secret.Candidate, why)
}

// remove returns the repair of a place that holds a CA without right.
func remove(place string, authority *v1alpha1.CAStatus, why string) string {
	return fmt.Sprintf("remove %[1]s.crt and %[1]s.key from the Secret: they hold the CA %[2]s, %[3]s", place, authority.KeyID, why)
}

// repairRetiring returns the repair of retiring.crt and retiring.key, or nothing. If the status is lost, any CA there
// except the signing CA counts as the retiring CA.
func (p *planner) repairRetiring() string {
	retiring, signing := p.facts.Secret.Retiring, p.facts.Secret.Signing
	statusLost := p.status.Phase == v1alpha1.New && signing != nil
	if retiring == nil || v1alpha1.SameCA(retiring, p.status.Retiring) || statusLost && retiring.KeyID != signing.KeyID {
		return ""
	}
	return remove("retiring", retiring, "which no rotation has put there")
}

// waitForSigningKey waits for a missing signing pair. otherwise says what is possible without a backup.
func (p *planner) waitForSigningKey(otherwise string) {
	instead := ""
	if p.facts.Secret.TLS != nil || p.facts.Secret.TLSProblem != "" {
		instead = "; its present content is refused: " + p.refuseTLS()
	}
	p.wait("put the CA %s back into tls.crt and tls.key of the Secret, from a backup: its key is missing%s; "+
		"without a backup, %s", p.status.Signing.KeyID, instead, otherwise)
}

// restoreTLS puts the signing pair back into tls.crt and tls.key, and reports whether it was missing. Only
// planCompleted accepts another CA there.
func (p *planner) restoreTLS() bool {
	secret := p.facts.Secret
	known := v1alpha1.SameCA(secret.TLS, secret.Signing) || v1alpha1.SameCA(secret.TLS, secret.Candidate)
	if p.status.Signing == nil || secret.Signing == nil || known {
		return false
	}
	p.reportReplacedTLS()
	p.act(RestoreTLS)
	return true
}

// actOnSecret takes an action that also writes tls.crt and tls.key. It reports an edit that the write discards.
func (p *planner) actOnSecret(action Action) {
	secret := p.facts.Secret
	known := v1alpha1.SameCA(secret.TLS, secret.Signing) || v1alpha1.SameCA(secret.TLS, secret.Candidate) ||
		v1alpha1.SameCA(secret.TLS, secret.Retiring)
	if secret.TLSProblem != "" || secret.TLS != nil && !known {
		p.reportReplacedTLS()
	}
	p.act(action)
}

// reportReplacedTLS reports that the content of tls.crt and tls.key is replaced, and why.
func (p *planner) reportReplacedTLS() {
	p.step.Refused = "the new content of tls.crt and tls.key of the Secret is refused and replaced by the signing CA: " +
		p.refuseTLS()
}

// refuseTLS returns why the content of tls.crt and tls.key cannot be the candidate, or nothing.
func (p *planner) refuseTLS() string {
	secret := p.facts.Secret
	switch {
	case secret.TLSProblem != "":
		return secret.TLSProblem
	case secret.TLS == nil:
		return "it is empty"
	case p.status.Phase != v1alpha1.Completed:
		return "a rotation is under way"
	case secret.TLS.KeyID == p.status.Signing.KeyID:
		return "it has the key of the signing CA, and a rotation needs a new key"
	default:
		return p.refuseAsCandidate()
	}
}

// refuseAsCandidate returns why the CA in tls.crt and tls.key can never sign here, or nothing.
func (p *planner) refuseAsCandidate() string {
	secret, last := p.facts.Secret, p.status.LastRetired
	switch {
	case !secret.TLS.NotAfter.After(p.facts.Now):
		return "it has expired"
	case p.facts.sealed(secret.TLS) || last != nil && last.KeyID == secret.TLS.KeyID:
		return "it has retired here, and verifiers would trust its old certificates again"
	case p.facts.Others[secret.TLS.KeyID] != "":
		return "it is a CA of SigningAuthority " + p.facts.Others[secret.TLS.KeyID]
	default:
		return ""
	}
}

// editSecret returns ring after action. Each action is one write. made is the key pair of MakeCandidate. permit is what
// the signer must obey from then on. Its lifetime cap applies while there is a candidate.
func editSecret(ring keypair.Ring, action Action, made keypair.Pair, permit keypair.Permit) keypair.Ring {
	none := keypair.Pair{}
	switch action {
	case MakeCandidate:
		ring.Candidate = made
	case TakeCandidate:
		ring.Candidate = ring.TLS
		if !ring.Signing.Empty() {
			ring.TLS = ring.Signing
		}
	case DropCandidate:
		ring.Candidate = none
	case RestoreTLS:
		ring.TLS = ring.Signing
	case RestoreSigning:
		ring.Signing = ring.TLS
	case Switch:
		ring.Retiring, ring.Signing, ring.TLS, ring.Candidate = ring.Signing, ring.Candidate, ring.Candidate, none
	case SwapBack:
		ring.Signing, ring.TLS, ring.Retiring = ring.Retiring, ring.Retiring, ring.Signing
	case DestroyRetiring:
		ring.Retiring = none
	}
	if ring.Candidate.Empty() {
		permit.LifetimeCap = 0
	}
	ring.Permit = permit
	return ring
}
