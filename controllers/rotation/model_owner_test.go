package rotation

import (
	"bytes"
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

var operations = []v1alpha1.Operation{
	v1alpha1.OperationStart, v1alpha1.OperationComplete, v1alpha1.OperationRollback, v1alpha1.OperationConfirm,
	v1alpha1.OperationAttest, v1alpha1.OperationAccept, v1alpha1.OperationRenewCertificate, "nonsense",
}

// likely lists the operations that an owner requests most often, by phase.
var likely = map[v1alpha1.Phase][]v1alpha1.Operation{
	v1alpha1.Preparing: {v1alpha1.OperationConfirm},
	v1alpha1.Prepared: {
		v1alpha1.OperationComplete, v1alpha1.OperationComplete, v1alpha1.OperationRollback,
		v1alpha1.OperationAccept,
	},
	v1alpha1.Completed: {v1alpha1.OperationStart, v1alpha1.OperationStart, v1alpha1.OperationRenewCertificate},
}

// asks makes the owner request an operation. Most of the owner's statements are true.
func (a *authority) asks() {
	operation := operations[a.random.IntN(len(operations))]
	if wanted := likely[a.status().Phase]; len(wanted) > 0 && !a.chance(4) {
		operation = wanted[a.random.IntN(len(wanted))]
	}
	lies := a.chance(12)
	switch operation {
	case v1alpha1.OperationConfirm, v1alpha1.OperationRollback: // a rollback states the same about the old CA
		authority := a.status().Candidate
		if operation == v1alpha1.OperationRollback {
			authority = a.status().Retiring
		}
		if authority == nil || a.accepted(authority.Certificate, a.verifiers...) == len(a.verifiers) {
			break
		}
		if !lies {
			return
		}
		a.saw("its owner lies of those who can't be asked")
		a.excused[authority.KeyID] = true
	case v1alpha1.OperationAttest:
		left := a.adoptedAndLeft()
		if len(left) > 0 && !lies {
			return
		}
		for _, cert := range left {
			a.saw("its owner lies of what others have issued")
			a.excused[a.key(cert)] = true
		}
	}
	a.want(operation)
}

// adoptedAndLeft returns the adopted CAs with valid certificates that are in no ledger.
func (a *authority) adoptedAndLeft() []string {
	var certs []string
	s := a.status()
	for _, cert := range a.issued {
		if cert.request == nil { // its CA may be recorded as adopted before the manager sees the operation
			certs = append(certs, cert.ca)
		}
		for _, authority := range []*v1alpha1.CAStatus{s.Candidate, s.Signing, s.Retiring} {
			adopted := authority != nil && authority.AdoptedAt != nil && a.key(cert.ca) == authority.KeyID
			if adopted && !cert.at.After(authority.AdoptedAt.Time) {
				certs = append(certs, cert.ca)
			}
		}
	}
	return certs
}

// brings makes the owner write to tls.crt and tls.key.
func (a *authority) brings() {
	what, pair := "nothing", keypair.Pair{}
	switch a.random.IntN(9) {
	case 0, 1:
		from := a.now()
		if a.chance(4) {
			from = from.Add(a.span(day, 10*day))
		}
		cert := a.newCAFrom(from, a.span(20*day, 2000*day))
		what, pair = "a new CA", a.cas[cert].pair
		if a.chance(2) {
			a.issued = append(a.issued, &certificate{ca: cert, at: a.now(), notAfter: a.now().Add(a.span(day, adoptedFor))})
		}
	case 2, 3:
		if left := slices.Sorted(maps.Keys(a.left)); len(left) > 0 {
			what, pair = "a CA that has retired", a.cas[a.withKey(left[a.random.IntN(len(left))])].pair
		}
	case 4:
		if len(a.names) > 0 {
			what, pair = "any CA", a.cas[a.names[a.random.IntN(len(a.names))]].pair
		}
	case 5:
		what, pair = "what signs", a.ring().Signing
	case 6:
		what, pair = "the candidate", a.ring().Candidate
	case 7:
		if signing := a.ring().Signing; a.alive(string(signing.Cert)) {
			authority := a.cas[string(signing.Cert)].authority
			made, err := authority.Renew(authority.Certificate().NotAfter.Sub(a.now())+a.span(day, 100*day), a.now())
			utilruntime.Must(err)
			what, pair = "a renewed certificate", keypair.Pair{Cert: made.CertificatePEM(), Key: signing.Key}
		}
	default:
		if a.chance(2) {
			what, pair = "garbage", garbage
		}
	}
	a.edit(func(ring *keypair.Ring) { ring.TLS = pair })
	a.saw("its owner brings " + what)
	a.log("%s: %s", a.name, pair.Cert)
	a.comesBack(pair)
}

// comesBack records that destroyed keys exist again.
func (a *authority) comesBack(pairs ...keypair.Pair) {
	for _, pair := range pairs {
		maps.DeleteFunc(a.destroyed, func(cert string, _ bool) bool { return bytes.Equal(a.cas[cert].pair.Key, pair.Key) })
	}
}

// misfortune causes one failure outside of the manager, such as a lost Secret.
func (a *authority) misfortune() {
	if candidate := a.status().Candidate; candidate != nil && string(a.ring().Signing.Cert) == candidate.Certificate {
		return // between the switch and its record, nobody could say later which CA has signed
	}
	remove := func(obj client.Object, name string) {
		delete(a.api.objects, keyOf(obj, client.ObjectKey{Namespace: modelNamespace, Name: name}))
	}
	switch a.random.IntN(12) {
	case 0, 1:
		a.saw("the ledger is lost")
		remove(&corev1.ConfigMap{}, ledger.BookName(a.name))
		clear(a.left) // the ledger records which CAs have retired
	case 2:
		a.saw("the status is lost")
		a.change(func(obj *v1alpha1.SigningAuthority) { obj.Status = v1alpha1.SigningAuthorityStatus{} })
	case 3:
		a.saw("the Secret is lost")
		remove(&corev1.Secret{}, a.name)
	case 4, 5:
		if len(a.backups) == 0 {
			return
		}
		a.saw("the Secret is put back from a backup")
		backup := a.backups[a.random.IntN(len(a.backups))]
		a.edit(func(ring *keypair.Ring) { *ring = backup })
		a.comesBack(backup.TLS, backup.Signing, backup.Candidate, backup.Retiring)
	case 6:
		a.saw("the candidate is taken out")
		a.edit(noCandidate)
	case 7:
		a.saw("the retiring CA is taken out")
		a.edit(noRetiring)
	case 8:
		a.saw("what signs is taken out")
		a.edit(noSigning)
	case 9, 10:
		a.mixesUp()
	default:
		i := a.random.IntN(len(a.signers))
		if a.signers[i].covered != nil {
			return
		}
		a.saw("a signer starts again")
		a.signers[i] = newSigner(a)
		a.signers[i].read(a)
	}
}

// mixesUp makes another client copy one pair of the Secret to another.
func (a *authority) mixesUp() {
	names := []string{"tls", "signing", "candidate", "retiring"}
	source, target := names[a.random.IntN(len(names))], names[a.random.IntN(len(names))]
	a.edit(func(ring *keypair.Ring) {
		*pairsByKey(ring)[target] = *pairsByKey(ring)[source]
		if a.chance(5) {
			a.saw("a pair is spoilt")
			*pairsByKey(ring)[target] = garbage
		}
	})
	a.saw("a pair is copied")
	a.log("%s: %s to %s", a.name, source, target)
}

func noCandidate(ring *keypair.Ring) { ring.Candidate = keypair.Pair{} }
func noRetiring(ring *keypair.Ring)  { ring.Retiring = keypair.Pair{} }
func noSigning(ring *keypair.Ring)   { ring.Signing = keypair.Pair{} }

// help makes the owner do what the authority waits for. It reports whether the owner did anything.
func (a *authority) help() bool { return a.repairs() || a.helps() }

// waitsFor reports whether the status of the authority names reason under waitingFor.
func (a *authority) waitsFor(reason string) bool {
	return slices.ContainsFunc(a.status().WaitingFor, func(text string) bool { return strings.Contains(text, reason) })
}

// The instructions of a stopped rotation, with the names of pairs and a key ID.
var (
	copyPair   = regexp.MustCompile(`^copy (\w+)\.crt and \w+\.key to (\w+)\.crt and`)
	emptyPair  = regexp.MustCompile(`^(?:remove|correct) (\w+)\.crt and`)
	putCert    = regexp.MustCompile(`^put status\.(\w+)\.certificate of the SigningAuthority into \w+\.crt of the Secret, and the key of (\w+)\.key into`)
	putBackCA  = regexp.MustCompile(`^put the CA (\w+) back into (\w+)\.crt and \w+\.key of the Secret, from a backup`)
	pairsByKey = func(ring *keypair.Ring) map[string]*keypair.Pair {
		return map[string]*keypair.Pair{
			"tls": &ring.TLS, "signing": &ring.Signing, "candidate": &ring.Candidate, "retiring": &ring.Retiring,
		}
	}
)

// repairs makes the owner restore the Secret as the authority asks, in one write.
func (a *authority) repairs() bool {
	s, before := a.status(), a.ring()
	ring := before
	from, to := pairsByKey(&before), pairsByKey(&ring)
	for _, text := range s.WaitingFor {
		if found := copyPair.FindStringSubmatch(text); found != nil {
			*to[found[2]] = *from[found[1]]
			a.saw("a pair is copied back")
		}
		if found := putCert.FindStringSubmatch(text); found != nil {
			*to[found[1]] = keypair.Pair{Cert: []byte(a.statusOf(found[1]).Certificate), Key: from[found[2]].Key}
			a.saw("a renewed certificate is put back")
		}
		if found := emptyPair.FindStringSubmatch(text); found != nil {
			*to[found[1]] = keypair.Pair{}
			a.saw("an edit is removed")
		}
		if found := putBackCA.FindStringSubmatch(text); found != nil {
			if cert := a.statusOf(found[2]).Certificate; found[2] != "candidate" || a.alive(cert) {
				*to[found[2]] = a.cas[cert].pair
				a.saw("a " + found[2] + " pair is put back")
			}
		}
	}
	switch {
	case s.Phase == v1alpha1.New && a.waitsFor("replace the CA in signing.crt"):
		noSigning(&ring)
	case a.waitsFor("from the Secret: it is a CA of SigningAuthority"): // the status was lost, and another authority took it
		a.excused[a.key(string(ring.Signing.Cert))] = true
		a.excused[a.key(string(ring.Candidate.Cert))] = true
		noSigning(&ring)
		noCandidate(&ring)
	case a.waitsFor("put another CA into tls.crt"), a.waitsFor("put a usable CA into"):
		ring.TLS = a.cas[a.newCA(3650*day)].pair
		a.saw("another first CA is brought")
	}
	if equality.Semantic.DeepEqual(ring, before) {
		return false
	}
	a.edit(func(stored *keypair.Ring) { *stored = ring })
	return true
}

// statusOf returns the CA that the pair of that name must hold.
func (a *authority) statusOf(pair string) *v1alpha1.CAStatus {
	s := a.status()
	return map[string]*v1alpha1.CAStatus{"signing": s.Signing, "candidate": s.Candidate, "retiring": s.Retiring}[pair]
}

// withKey returns the first certificate of the CA with that key ID.
func (a *authority) withKey(keyID string) string {
	at := slices.IndexFunc(a.names, func(cert string) bool { return a.cas[cert].authority.KeyID() == keyID })
	return a.names[at]
}

// helps makes the owner do the steps that a rotation needs an administrator for.
func (a *authority) helps() bool {
	s := a.status()
	alive := func(authority *v1alpha1.CAStatus) bool { return authority != nil && a.alive(authority.Certificate) }
	waitForEnd := s.Retiring != nil && !alive(s.Signing) && alive(s.Retiring)
	switch {
	case s.Phase == v1alpha1.Preparing && s.Candidate != nil && !alive(s.Candidate) && s.Signing == nil:
		cert := a.newCA(3650 * day)
		a.edit(func(ring *keypair.Ring) { ring.TLS = a.cas[cert].pair })
	case s.Phase == v1alpha1.Preparing && s.Candidate != nil && !alive(s.Candidate):
		a.want(v1alpha1.OperationRollback)
	// A known weakness: the signing CA expires before the API servers are proven to refuse the old CA. Then the proof must wait
	// until the old CA has expired too.
	case s.Phase == v1alpha1.Completing && waitForEnd:
		a.saw("nothing but to wait for the end of a CA that can't be shown to be refused")
		a.pass(a.cas[s.Retiring.Certificate].authority.Certificate().NotAfter.Sub(a.now()))
	case s.Phase == v1alpha1.Prepared && waitForEnd && a.ring().Retiring.Empty():
		a.saw("nothing but to wait for the end of a CA whose key was taken away")
		a.pass(a.cas[s.Retiring.Certificate].authority.Certificate().NotAfter.Sub(a.now()))
	case s.Phase == v1alpha1.Prepared && waitForEnd:
		a.saw("gone back from what has ended")
		a.want(v1alpha1.OperationRollback)
	case a.waitsFor("is not valid before"):
		a.saw("a candidate becomes valid")
		a.pass(a.cas[cmp.Or(s.Candidate, s.Renewed).Certificate].authority.Certificate().NotBefore.Sub(a.now()) + time.Second)
	case a.waitsFor("because they cannot be probed"):
		a.want(v1alpha1.OperationConfirm)
	default:
		return false
	}
	return true
}
