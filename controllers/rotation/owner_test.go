package rotation

import (
	"maps"
	"slices"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

var operations = []v1alpha1.Operation{
	v1alpha1.RotateStart, v1alpha1.RotateComplete, v1alpha1.RotateRollback, v1alpha1.TrustConfirmed,
	v1alpha1.AdoptionAttested, v1alpha1.OutstandingAccepted, "nonsense",
}

// want puts an operation into the annotation.
func (w *world) want(operation v1alpha1.Operation) {
	w.operation = operation
	w.asked++
	w.tell("%s: its owner wants %s", w.name, operation)
}

// likely are what an owner wants mostly.
var likely = map[v1alpha1.Phase][]v1alpha1.Operation{
	v1alpha1.Preparing: {v1alpha1.TrustConfirmed},
	v1alpha1.Prepared:  {v1alpha1.RotateComplete, v1alpha1.RotateComplete, v1alpha1.RotateComplete, v1alpha1.RotateRollback, v1alpha1.OutstandingAccepted},
	v1alpha1.Completed: {v1alpha1.RotateStart},
}

// asks is its owner wanting something. What he says is mostly true.
func (w *world) asks() {
	operation := operations[w.random.IntN(len(operations))]
	if wanted := likely[w.status.Phase]; len(wanted) > 0 && !w.chance(4) {
		operation = wanted[w.random.IntN(len(wanted))]
	}
	lies := w.chance(12)
	switch operation {
	case v1alpha1.TrustConfirmed, v1alpha1.RotateRollback: // to go back says that of the old one
		one := w.status.Candidate
		if operation == v1alpha1.RotateRollback {
			one = w.status.Retiring
		}
		if one == nil || w.accepted(w.verifiers, one.Certificate) == len(w.verifiers) {
			break
		}
		if !lies {
			return
		}
		w.saw("its owner lies of those who can't be asked")
		w.excuse(one.Certificate)
	case v1alpha1.AdoptionAttested:
		left := w.adoptedAndLeft()
		if len(left) > 0 && !lies {
			return
		}
		for _, name := range left {
			w.saw("its owner lies of what others have issued")
			w.excuse(name)
		}
	}
	w.want(operation)
}

// adoptedAndLeft are the adopted CAs of which something lives that no ledger has.
func (w *world) adoptedAndLeft() []string {
	var names []string
	for _, cert := range w.issued {
		if cert.foreign { // its CA may be noted as adopted before this is heard
			names = append(names, cert.ca)
		}
		for _, one := range []*v1alpha1.CAStatus{w.status.Candidate, w.status.Signing, w.status.Retiring} {
			if one != nil && one.AdoptedAt != nil && cert.ca == one.Certificate && !cert.at.After(one.AdoptedAt.Time) {
				names = append(names, cert.ca)
			}
		}
	}
	return names
}

// brings is its owner putting something into tls.crt and tls.key.
func (w *world) brings() {
	what, pair := "nothing", keypair.Pair{}
	switch w.random.IntN(8) {
	case 0, 1:
		what, pair = "a new CA", w.pair(w.span(20*day, 2000*day))
		if w.chance(2) {
			w.issued = append(w.issued, certificate{ca: string(pair.Cert), at: w.now, notAfter: w.now.Add(w.span(day, adoptedFor)), foreign: true})
		}
	case 2, 3:
		if left := slices.Sorted(maps.Keys(w.left)); len(left) > 0 {
			what, pair = "a CA that has retired", w.backup(left[w.random.IntN(len(left))])
		}
	case 4:
		if len(w.pairs) > 0 {
			what, pair = "any CA", w.pairs[w.random.IntN(len(w.pairs))]
		}
	case 5:
		what, pair = "what signs", w.ring.Signing
	case 6:
		what, pair = "the candidate", w.ring.Candidate
	default:
		if w.chance(2) {
			what, pair = "garbage", garbage
		}
	}
	w.ring.TLS = pair
	w.saw("its owner brings " + what)
	w.tell("%s: %s", w.name, pair.Cert)
	w.comesBack(pair)
}

// comesBack notes that keys are there again which were destroyed.
func (w *world) comesBack(pairs ...keypair.Pair) {
	for _, one := range pairs {
		delete(w.destroyed, string(one.Cert))
	}
}

// misfortune is what should not happen, and does.
func (w *world) misfortune() {
	if one := w.status.Candidate; one != nil && sameCA(w.facts(w.ring.Signing), one) {
		return // between the switch and the note of it nobody could say afterwards what has signed
	}
	switch w.random.IntN(9) {
	case 0, 1:
		w.ledger = accounts{}
		clear(w.left) // who has retired is in the ledger
		w.saw("the ledger is lost")
	case 2:
		w.status = v1alpha1.SigningAuthorityStatus{}
		w.streaks = nil
		w.saw("the status is lost")
	case 3:
		w.ring = keypair.Ring{}
		w.saw("the Secret is lost")
	case 4, 5:
		if len(w.backups) > 0 {
			w.ring = w.backups[w.random.IntN(len(w.backups))]
			w.comesBack(w.ring.TLS, w.ring.Signing, w.ring.Candidate, w.ring.Retiring)
			w.saw("the Secret is put back from a backup")
			w.tell("%s", w)
		}
	case 6:
		w.ring.Candidate = keypair.Pair{}
		w.saw("the candidate is taken out")
	case 7:
		w.ring.Retiring = keypair.Pair{}
		w.saw("the retiring CA is taken out")
	default:
		if one := w.signers[w.random.IntN(len(w.signers))]; one.covered == nil {
			*one = signer{}
			one.read(w)
			w.saw("a signer starts again")
		}
	}
}

// span is between least and most.
func (c *cluster) span(least, most time.Duration) time.Duration {
	return (least + time.Duration(c.random.Int64N(int64(most-least)))).Truncate(time.Second)
}
