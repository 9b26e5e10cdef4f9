package rotation

import (
	"slices"
	"strings"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// dies says whether the process dies here; what it has been told by API servers dies with it.
func (c *cluster) dies() bool {
	if !c.crash() {
		return false
	}
	for _, w := range c.worlds {
		w.streaks = nil
	}
	return true
}

// reconcile is one look at the world with what follows, each write of which the process may not live to see. It says
// whether there was anything to do.
func (w *world) reconcile() bool {
	w.now = w.now.Add(w.pause())
	f := w.look()
	before := w.status
	step := Next(&w.spec, &w.status, f)
	again := before.Intent == string(step.Action)
	busy := step.RemoveOperation || step.Action != None && !again || w.quiet && decisionOf(&step.Status) != decisionOf(&before)
	if w.dies() {
		return true
	}
	w.note(step, f)
	if w.dies() {
		return true
	}
	if step.RemoveOperation {
		if w.heard != w.asked {
			w.saw("an operation is dropped without a word")
			w.fail(sameOperationDropped, "%s was dropped without a word", w.operation)
		}
		w.operation = ""
	}
	if step.Action != None && !w.dies() {
		w.act(step, f)
	}
	return busy
}

// pause is what lies before a look: less where there is much to do.
func (w *world) pause() time.Duration {
	if w.quiet {
		return between
	}
	return w.span(time.Second, between)
}

// note is Reconciler.note.
func (w *world) note(step Step, f Facts) {
	before := w.status
	w.status = step.Status
	if step.Refused != "" {
		w.refused = append(w.refused, step.Refused)
	}
	if step.RemoveOperation && before.TakenOperation == "" {
		w.heard = w.asked
		w.tell("%s takes %s; refused: %q", w.name, w.operation, step.Refused)
	}
	if before.Phase != w.status.Phase {
		w.tell("%s is %s", w.name, w.status.Phase)
	}
	w.promised(before, f)
	w.checkStatus(before)
}

// act is Reconciler.act.
func (w *world) act(step Step, f Facts) {
	action := step.Action
	w.taken = append(w.taken, action)
	w.seen[string(action)]++
	w.tell("%s: %s", w.name, action)
	w.checkAct(step, f)
	switch {
	case action == Publish:
		w.published = w.bundle()
	case action == Open:
		w.open(f)
	case action == Seal:
		w.seal()
	case action == Unseal:
		w.unseal(f)
	case action == Prune:
		w.kept = slices.DeleteFunc(w.kept, func(name string) bool { return name == w.status.Retiring.Certificate })
	case action == CopyFrom:
		w.copyFrom(step, f)
	case action == TakeCandidate:
		if w.status.Candidate.AdoptedAt != nil {
			w.ledger.open(w.status.Candidate.KeyID)
		}
		if !w.dies() {
			w.turn(step, keypair.Pair{})
		}
	case action == MakeCandidate:
		lifetime := 10 * 365 * day
		if !w.quiet && w.chance(4) {
			lifetime = w.span(30*day, 400*day)
		}
		made := w.pair(lifetime)
		w.ledger.open(string(made.Cert))
		if !w.dies() {
			w.turn(step, made)
		}
	case secretEdits[action] != nil:
		w.turn(step, keypair.Pair{})
	default:
		panic("what is " + action)
	}
}

// turn is Reconciler.writeKeys.
func (w *world) turn(step Step, made keypair.Pair) {
	before := w.ring
	ring, err := editSecret(w.ring, step.Action, made, w.permit(step.Action))
	if err != nil {
		panic(err)
	}
	w.ring = ring
	w.checkTurn(step, before)
	if len(w.backups) < 40 {
		w.backups = append(w.backups, ring)
	}
}

// seal is Reconciler.seal.
func (w *world) seal() {
	retiring := w.status.Retiring
	if w.ledger[retiring.KeyID] == nil {
		if retiring.OutstandingAcceptedAt == nil && retiring.NotAfter.After(w.now) {
			return
		}
		w.saw("a lost account is closed")
		w.ledger.open(retiring.KeyID)
	}
	w.ledger[retiring.KeyID].Sealed = true
}

// open is Reconciler.open.
func (w *world) open(f Facts) {
	if f.SigningUnaccounted {
		w.ledger.open(w.status.Signing.KeyID)
	}
	if f.CandidateUnaccounted {
		w.ledger.open(w.status.Candidate.KeyID)
	}
}

// unseal is Reconciler.unseal.
func (w *world) unseal(f Facts) {
	if f.SigningSealed && sameCA(f.Secret.Signing, w.status.Signing) {
		w.ledger[w.status.Signing.KeyID].Sealed = false
	}
	if f.Sealed {
		w.ledger[w.status.Retiring.KeyID].Sealed = false
	}
}

// copyFrom is Reconciler.copyFrom.
func (w *world) copyFrom(step Step, f Facts) {
	other := w.worlds[slices.IndexFunc(w.worlds, func(other *world) bool { return other.name == w.spec.From })]
	account := other.ledger[f.From.KeyID]
	if account == nil || !sameCA(w.facts(other.ring.Signing), f.From) {
		return
	}
	w.ledger.take(f.From.KeyID, account, w.spec.Signers)
	if w.dies() {
		return
	}
	w.turn(step, other.ring.Signing)
	for _, cert := range other.issued {
		if cert.ca == f.From.Certificate && (cert.foreign || slices.Contains(w.spec.Signers, cert.signer)) {
			w.saw("a certificate is taken over")
			w.issued = append(w.issued, cert)
		}
	}
	w.recorded = len(w.issued)
	if other.excused[f.From.Certificate] {
		w.excused[f.From.Certificate] = true
	}
}

// help is what the owner does where the authority waits for him. It says whether there was anything.
func (w *world) help() bool {
	s := &w.status
	asked := func(repair string) bool {
		return slices.ContainsFunc(s.WaitingFor, func(reason string) bool { return strings.Contains(reason, repair) })
	}
	switch {
	case asked("signing.key of the Secret to be moved to retiring.crt"):
		w.saw("what retires is moved")
		w.ring.Retiring, w.ring.Signing = w.ring.Signing, keypair.Pair{}
	case asked("candidate.crt and candidate.key to be removed"):
		w.saw("a candidate is removed")
		w.ring.Candidate = keypair.Pair{}
	case asked("retiring.crt and retiring.key to be removed"):
		w.saw("what no rotation has left is taken out")
		w.ring.Retiring = keypair.Pair{}
	case s.Signing != nil && !sameCA(w.facts(w.ring.Signing), s.Signing) && string(w.ring.TLS.Cert) != s.Signing.Certificate:
		w.saw("what signs is put back")
		w.ring.TLS = w.backup(s.Signing.Certificate)
	case s.Phase == v1alpha1.Preparing && s.Signing == nil && s.Candidate != nil && s.Candidate.AdoptedAt != nil && w.ring.Candidate.Empty() && string(w.ring.TLS.Cert) != s.Candidate.Certificate && w.alive(s.Candidate.Certificate):
		w.saw("a candidate is put back")
		w.ring.TLS = w.backup(s.Candidate.Certificate)
	case s.Phase == v1alpha1.New && w.ledger.sealed(string(w.ring.Signing.Cert)):
		w.saw("what has retired is taken out of the place of what signs")
		w.ring.Signing = keypair.Pair{}
	case s.Phase == v1alpha1.New && (s.Signing == nil && !w.alive(string(w.ring.TLS.Cert)) || w.ledger.sealed(string(w.ring.TLS.Cert))):
		w.ring.TLS = w.pair(10 * 365 * day)
	case s.Phase == v1alpha1.Preparing && s.Candidate != nil && !w.alive(s.Candidate.Certificate) && s.Signing == nil:
		w.ring.TLS = w.pair(10 * 365 * day)
	case s.Phase == v1alpha1.Preparing && s.Candidate != nil && !w.alive(s.Candidate.Certificate):
		w.want(v1alpha1.RotateRollback)
	case endedWhileCompleting && s.Phase == v1alpha1.Completing && !w.alive(s.Signing.Certificate) && w.alive(s.Retiring.Certificate):
		w.saw("nothing but to wait for the end of a CA that can't be shown to be refused")
		w.pass(w.ends[s.Retiring.Certificate].Sub(w.now))
	case s.Phase == v1alpha1.Prepared && !w.alive(s.Signing.Certificate) && w.alive(s.Retiring.Certificate) && w.ring.Retiring.Empty():
		w.saw("nothing but to wait for the end of a CA whose key was taken away")
		w.pass(w.ends[s.Retiring.Certificate].Sub(w.now))
	case s.Phase == v1alpha1.Prepared && !w.alive(s.Signing.Certificate) && w.alive(s.Retiring.Certificate):
		w.saw("gone back from what has ended")
		w.want(v1alpha1.RotateRollback)
	case s.Phase == v1alpha1.Preparing && s.Candidate != nil && slices.ContainsFunc(signersToConfirm(w.spec.Signers), func(name string) bool { return len(withoutTrust([]string{name}, s.Candidate)) > 0 }):
		w.want(v1alpha1.TrustConfirmed)
	default:
		return false
	}
	return true
}
