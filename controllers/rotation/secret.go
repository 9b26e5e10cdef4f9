package rotation

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// pairName names two keys of the Secret: tlsPair is tls.crt and tls.key.
type pairName string

const (
	tlsPair       pairName = "tls"
	signingPair   pairName = "signing"
	candidatePair pairName = "candidate"
	retiringPair  pairName = "retiring"
	noPair        pairName = ""
)

func (name pairName) String() string { return fmt.Sprintf("%[1]s.crt and %[1]s.key", string(name)) }

// pairOf returns the first pair whose CA is the same as authority, or noPair.
func (s *secretFacts) pairOf(authority *v1alpha1.CAStatus, same func(a, b *v1alpha1.CAStatus) bool) pairName {
	for i, found := range []*v1alpha1.CAStatus{s.Signing, s.Candidate, s.Retiring, s.TLS} {
		if same(found, authority) {
			return []pairName{signingPair, candidatePair, retiringPair, tlsPair}[i]
		}
	}
	return noPair
}

// sameKey reports whether both have the same key, perhaps with another certificate.
func sameKey(a, b *v1alpha1.CAStatus) bool { return a != nil && b != nil && a.KeyID == b.KeyID }

// notAsLeft begins the message about a stopped rotation.
const notAsLeft = "the Secret is not as the rotation left it, restore it in one write: "

// checkSecret stops the rotation while another client's edit makes the Secret wrong, and reports whether it does. The
// manager repairs nothing: it could lose a key, or sign with a CA that is not proven. It says for each wrong pair of keys
// how to restore it, and continues when the Secret is right:
//  1. The pair retiring holds the retiring CA.
//  2. The pair signing holds the signing CA.
//  3. The pair candidate holds the candidate, which may sign here.
//  4. The pair tls holds the signing CA, the candidate, or a CA that the administrator brings. No signer reads it, so it
//     does not stop steps that are right whatever it holds.
//
// The pairs of 1 to 3 may be missing too if no other pair holds their CA. Then the key is lost, and the phase decides.
func (p *planner) checkSecret() bool {
	wrong := p.wrongPairs()
	onlyTLS := len(wrong) == 0
	if onlyTLS { // otherwise the pair tls may hold what another pair lacks
		err := p.checkTLS()
		if err == nil {
			return false
		}
		wrong = []string{err.Error()}
	}
	p.step.Stopped = notAsLeft + strings.Join(wrong, "; ")
	if onlyTLS && p.needsNoTLS() {
		p.wrongTLS = wrong[0]
		return false
	}
	p.status.WaitingFor = wrong
	if p.facts.Operation != "" {
		p.refuseOperation("%s", p.step.Stopped)
	}
	return true
}

// wrongPairs returns how to restore the pairs retiring, signing and candidate.
func (p *planner) wrongPairs() []string {
	secret, retiring, signing := &p.facts.Secret, p.status.Retiring, p.status.Signing
	if p.status.Phase == v1alpha1.New { // the status is lost: only the Secret knows the CAs
		signing = secret.Signing
		if signing != nil && secret.Retiring != nil && secret.Retiring.KeyID != signing.KeyID {
			retiring = secret.Retiring
		}
	}
	var copies, wrong []string
	for _, err := range []error{
		secret.check(retiringPair, secret.Retiring, retiring), secret.check(signingPair, secret.Signing, signing), p.checkCandidate(),
	} {
		switch {
		case errors.As(err, new(copyError)):
			copies = append(copies, err.Error())
		case err != nil:
			wrong = append(wrong, err.Error())
		}
	}
	return append(copies, wrong...) // a removal could destroy what is to be copied
}

// needsNoTLS reports whether the next step is a rollback, part of a completion, or a Permit. They are right whatever the pair
// tls holds.
func (p *planner) needsNoTLS() bool {
	switch operation := p.facts.Operation; p.status.Phase {
	case v1alpha1.Prepared, v1alpha1.Completing:
		return true
	case v1alpha1.Preparing:
		return operation == v1alpha1.OperationRollback || operation == "" && !p.facts.Permitted
	default:
		return operation == "" && !p.facts.Permitted
	}
}

// check returns how to restore the pair of that name, which holds found instead of want.
func (s *secretFacts) check(name pairName, found, want *v1alpha1.CAStatus) error {
	source, key, unusable := s.pairOf(want, v1alpha1.SameCA), s.pairOf(want, sameKey), s.Unusable[name]
	switch {
	case v1alpha1.SameCA(found, want), found == nil && source == noPair && key == noPair && unusable == nil:
		return nil
	case source != noPair:
		return copyError{source, name, want.KeyID}
	case key != noPair:
		return fmt.Errorf("put status.%[1]s.certificate of the SigningAuthority into %[1]s.crt of the Secret, and the key of %[2]s.key into %[1]s.key: "+
			"they must hold the CA %[3]s with its newest certificate", string(name), string(key), want.KeyID)
	case want == nil && unusable != nil:
		return fmt.Errorf("remove %s from the Secret, or restore them from a backup: %w", name, unusable)
	case want == nil:
		return remove(name, found, errors.New("no rotation has put it there"))
	case unusable == nil:
		unusable = fmt.Errorf("they hold the CA %s, which no rotation has put there", found.KeyID)
	}
	return fmt.Errorf("put the CA %s back into %s of the Secret, from a backup: %w; without a backup, remove them",
		want.KeyID, name, unusable)
}

// copyError is the instruction to copy the pair from to the pair to.
type copyError struct {
	from, to pairName
	keyID    string
}

func (e copyError) Error() string {
	return fmt.Sprintf("copy %s to %s of the Secret, which must hold the CA %s", e.from, e.to, e.keyID)
}

// remove returns the instruction to remove a pair, which holds authority.
func remove(name pairName, authority *v1alpha1.CAStatus, why error) error {
	return fmt.Errorf("remove %s from the Secret: they hold the CA %s: %w", name, authority.KeyID, why)
}

// checkCandidate returns how to restore the pair candidate. It is right in Preparing if the status has no candidate yet,
// or if the administrator has brought the candidate to the pair tls: the next step stores it.
func (p *planner) checkCandidate() error {
	s, secret := p.status, &p.facts.Secret
	found, unnoted := secret.Candidate, s.Phase == v1alpha1.New || s.Phase == v1alpha1.Preparing && s.Candidate == nil
	switch {
	case found != nil && p.refuseCA(found) != nil:
		return remove(candidatePair, found, p.refuseCA(found))
	case found != nil && unnoted, v1alpha1.SameCA(secret.TLS, s.Candidate):
		return nil
	default:
		return secret.check(candidatePair, found, s.Candidate)
	}
}

// checkTLS returns how to restore the pair tls. In phase New, planFirstCA decides about it.
func (p *planner) checkTLS() error {
	s, secret := p.status, &p.facts.Secret
	known := v1alpha1.SameCA(secret.TLS, s.Signing) || v1alpha1.SameCA(secret.TLS, s.Candidate)
	switch why := p.refuseTLS(); {
	case known, why == nil, s.Phase == v1alpha1.New:
		return nil
	case v1alpha1.SameCA(secret.Signing, s.Signing):
		return fmt.Errorf("copy signing.crt and signing.key to tls.crt and tls.key of the Secret: the present content is refused: %w", why)
	case errors.Is(why, errEmpty), v1alpha1.SameCA(secret.TLS, secret.Retiring): // the signing pair is lost
		return nil
	default:
		return fmt.Errorf("correct tls.crt and tls.key of the Secret, or make both empty: the present content is refused: %w", why)
	}
}

// signingMissing reports whether signing.crt and signing.key lack the signing CA.
func (p *planner) signingMissing() bool {
	return p.status.Signing != nil && !v1alpha1.SameCA(p.facts.Secret.Signing, p.status.Signing)
}

// candidateMissing reports whether candidate.crt and candidate.key lack the candidate.
func (p *planner) candidateMissing() bool {
	return p.status.Candidate != nil && !v1alpha1.SameCA(p.facts.Secret.Candidate, p.status.Candidate)
}

// waitForSigningKey waits for a lost signing pair. otherwise says what is possible without a backup.
func (p *planner) waitForSigningKey(otherwise string) {
	p.wait("put the CA %s back into signing.crt and signing.key of the Secret, from a backup: its key is missing; "+
		"without a backup, %s", p.status.Signing.KeyID, otherwise)
}

// brought reports whether tls.crt and tls.key hold another CA, which becomes the candidate.
func (p *planner) brought() bool {
	tls := p.facts.Secret.TLS
	known := slices.ContainsFunc(p.status.CAs(), func(authority *v1alpha1.CAStatus) bool { return v1alpha1.SameCA(tls, authority) })
	return !known && p.refuseTLS() == nil
}

// errEmpty is returned by refuseTLS.
var errEmpty = errors.New("it is empty")

// refuseTLS returns why the content of tls.crt and tls.key cannot become the candidate now. While a CA signs, another
// candidate is accepted only between two rotations, or if the present candidate is missing.
func (p *planner) refuseTLS() error {
	secret, phase := &p.facts.Secret, p.status.Phase
	replaceable := phase == v1alpha1.Preparing && (secret.Signing == nil || p.candidateMissing())
	switch {
	case secret.Unusable[tlsPair] != nil:
		return secret.Unusable[tlsPair]
	case secret.TLS == nil:
		return errEmpty
	case phase != v1alpha1.New && phase != v1alpha1.Completed && !replaceable:
		return errors.New("a rotation is under way")
	case !secret.TLS.NotAfter.After(p.facts.Now):
		return errors.New("it has expired")
	default:
		return p.refuseCA(secret.TLS)
	}
}

// refuseCA returns why authority can never become the signing CA here.
func (p *planner) refuseCA(authority *v1alpha1.CAStatus) error {
	last, signing := p.status.LastRetired, cmp.Or(p.status.Signing, p.facts.Secret.Signing)
	switch {
	case p.facts.sealed(authority) || last != nil && last.KeyID == authority.KeyID:
		return errors.New("it has retired here, and verifiers would trust its old certificates again")
	case p.facts.Others[authority.KeyID] != "":
		return errors.New("it is a CA of SigningAuthority " + p.facts.Others[authority.KeyID])
	case signing != nil && signing.KeyID == authority.KeyID && !p.facts.Secret.Renews:
		return errors.New("it has the key of the signing CA, and a rotation needs a new key; a renewed certificate is accepted in Completed, with " +
			"the same subject and subject key identifier, and a later end")
	default:
		return nil
	}
}

// tlsFollows reports whether the pair tls is empty, or holds authority. Any other content is an edit of another client, which
// stays.
func (o *observation) tlsFollows(authority *v1alpha1.CAStatus) bool {
	return o.ring.TLS.Empty() || v1alpha1.SameCA(o.Secret.TLS, authority)
}

// editSecret returns the ring of o after action. Each action is one write. made is the key pair of MakeCandidate or
// MakeRenewed. permit is what the signer must obey from then on. Its lifetime cap applies while there is a candidate.
func editSecret(o *observation, action Action, made keypair.Pair, permit keypair.Permit) keypair.Ring {
	ring, none := o.ring, keypair.Pair{}
	switch action {
	case MakeCandidate:
		ring.Candidate = made
	case TakeCandidate:
		ring.Candidate = ring.TLS
		if !ring.Signing.Empty() {
			ring.TLS = ring.Signing
		}
	case DropCandidate:
		if o.tlsFollows(o.Secret.Candidate) { // otherwise it would be taken again
			ring.TLS = ring.Signing
		}
		ring.Candidate = none
	case Switch:
		ring.Retiring, ring.Signing, ring.TLS, ring.Candidate = ring.Signing, ring.Candidate, ring.Candidate, none
	case SwapBack:
		if o.tlsFollows(o.Secret.Signing) {
			ring.TLS = ring.Retiring
		}
		ring.Signing, ring.Retiring = ring.Retiring, ring.Signing
	case DestroyRetiring:
		ring.Retiring = none
	case MakeRenewed:
		ring.TLS = made
	case TakeRenewed:
		ring.Signing = ring.TLS
	}
	if ring.Candidate.Empty() {
		permit.LifetimeCap = 0
	}
	ring.Permit = permit
	return ring
}
