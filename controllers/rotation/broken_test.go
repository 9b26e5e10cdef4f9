package rotation

import (
	"fmt"
	"slices"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// What is so, and need not be. Each goes, with what asks for it, when it is done otherwise.
const (
	// acceptedGrows: what a late signer issues after outstanding-accepted, and before the account is closed, is not asked about.
	acceptedGrows = true
	// endedWhileCompleting: what signs ends before it was proven that the old CA is refused, which then can't be proven before
	// that has ended too.
	endedWhileCompleting = true
	// sameOperationDropped: an operation that is asked for again before it is noted that the last one is gone is dropped.
	sameOperationDropped = true
)

const (
	adoptedFor = 60 * day // longer than what is issued here and the stride of a mark, as an owner has to see to
	anySigner  = "any signer, as the ledger of it is gone"
)

// promises are what the owner has said or done that excuses.
type promises struct {
	// named is what was outstanding when he accepted it, by CA.
	named map[string][]v1alpha1.Outstanding
	// acceptedAt is when.
	acceptedAt map[string]time.Time
	// excused are the CAs of which he has said what is not so, or whose key and status he has taken away at once.
	excused map[string]bool
	// left are the CAs that have retired here, as far as the ledger knows.
	left map[string]bool
}

func newPromises() promises {
	return promises{map[string][]v1alpha1.Outstanding{}, map[string]time.Time{}, map[string]bool{}, map[string]bool{}}
}

func (w *world) excuse(name string) { w.excused[name] = true }

// fail notes what is wrong, unless it is known.
func (w *world) fail(known bool, format string, args ...any) {
	if !known && w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...) + ": " + w.String()
	}
}

// excuses says whether the certificate may break.
func (w *world) excuses(cert certificate) bool {
	if w.excused[cert.ca] {
		return true
	}
	if at, accepted := w.acceptedAt[cert.ca]; acceptedGrows && accepted && !cert.at.Before(at) {
		return true
	}
	return slices.ContainsFunc(w.named[cert.ca], func(one v1alpha1.Outstanding) bool {
		return (one.Signer == cert.signer || one.Signer == "" || one.Signer == anySigner) && !cert.notAfter.After(one.Until.Time)
	})
}

// promised notes what the owner has promised by what was noted just now.
func (w *world) promised(before v1alpha1.SigningAuthorityStatus, f Facts) {
	s := &w.status
	if r := s.Retiring; r != nil && r.OutstandingAcceptedAt != nil && before.Retiring != nil && before.Retiring.OutstandingAcceptedAt == nil {
		w.named[r.Certificate] = Outstanding(&w.spec, r, f)
		w.acceptedAt[r.Certificate] = w.now
		w.saw("what is outstanding is accepted")
		if len(w.named[r.Certificate]) > 0 {
			w.saw("something is outstanding that is accepted")
		}
	}
	if one := s.Candidate; one != nil && one.TrustConfirmedAt != nil && s.Signing == nil && (before.Candidate == nil || before.Candidate.Certificate != one.Certificate) && !sameCA(f.Secret.TLS, f.From) {
		w.also = append(w.also, one.Certificate) // he has brought the first one, and seen to it
		for i := range w.verifiers {
			w.verifiers[i] = append(w.verifiers[i], one.Certificate)
		}
	}
	if before.Phase == v1alpha1.New && s.Phase != v1alpha1.New {
		w.resumed()
	}
}

// resumed excuses what nobody can know any more: CAs that are neither in the Secret nor in the status.
func (w *world) resumed() {
	known := func(name string) bool {
		return slices.ContainsFunc([]*v1alpha1.CAStatus{w.status.Signing, w.status.Retiring}, func(one *v1alpha1.CAStatus) bool {
			return one != nil && one.Certificate == name
		})
	}
	for _, cert := range w.issued {
		if !known(cert.ca) && !cert.foreign {
			w.excuse(cert.ca)
		}
	}
	for _, one := range w.signers { // which go on with what they have loaded
		if name := string(one.view.Signing.Cert); name != "" && !known(name) {
			w.excuse(name)
		}
	}
}

// checkStatus looks at what was noted.
func (w *world) checkStatus(before v1alpha1.SigningAuthorityStatus) {
	s := &w.status
	for _, one := range Trusted(s) {
		if w.left[one.Certificate] && before.Phase != v1alpha1.New && !slices.ContainsFunc(Trusted(&before), func(was *v1alpha1.CAStatus) bool { return was.Certificate == one.Certificate }) {
			w.fail(false, "%s, which has retired here, is to be trusted again", one.Certificate)
		}
	}
	if before.UnpublishedAt == nil && s.UnpublishedAt != nil {
		w.saw("a CA is unpublished")
		for _, cert := range w.issued {
			if cert.ca == s.Retiring.Certificate && cert.notAfter.After(w.now) && !w.excuses(cert) {
				w.fail(false, "completed with a certificate of %s that lives until %s", cert.ca, cert.notAfter)
			}
		}
		for _, one := range w.signers {
			w.checkReserve(one, s.Retiring.Certificate)
		}
	}
}

// checkReserve says whether a signer that is late could go on with the CA.
func (w *world) checkReserve(one *signer, name string) {
	if one.book.keyID != name {
		return
	}
	for signer, known := range one.book.entries {
		cert := certificate{ca: name, signer: signer, at: w.now, notAfter: known.NotAfter, reserved: true}
		if !known.sealed && known.left > 0 && known.NotAfter.After(w.now) && known.until.After(w.now) && !w.excuses(cert) {
			w.fail(false, "a signer may issue by %s until %s", name, known.NotAfter)
		}
	}
}

// checkAct looks at what is about to be done.
func (w *world) checkAct(step Step, f Facts) {
	switch step.Action {
	case Switch:
		w.checkTrusted(w.ring.Candidate, step.Action)
		w.proven[string(w.ring.Candidate.Cert)] = append(w.proven[string(w.ring.Candidate.Cert)], w.spec.Signers...)
	case SwapBack:
		w.checkTrusted(w.ring.Retiring, step.Action)
		w.proven[string(w.ring.Retiring.Cert)] = append(w.proven[string(w.ring.Retiring.Cert)], slices.DeleteFunc(slices.Clone(w.spec.Signers), forServers)...)
	case DestroyRetiring:
		w.checkRefused(f)
	case Prune:
		w.seen["pruned"]++
	}
}

func (w *world) checkTrusted(pair keypair.Pair, action Action) {
	name := string(pair.Cert)
	switch {
	case AsksAPIServers(w.spec.Signers) && w.accepted(w.servers, name) != len(w.servers):
		w.fail(false, "%s to %s, which not every API server trusts", action, name)
	case w.ledger.sealed(name):
		w.fail(false, "%s to %s, for which the ledger is closed", action, name)
	case w.left[name]:
		w.fail(false, "%s to %s, which has retired here", action, name)
	case len(signersToConfirm(w.spec.Signers)) == 0 || slices.ContainsFunc(w.worlds, func(one *world) bool { return one.excused[name] }): // what was said of it there counts here
	case w.accepted(w.verifiers, name) != len(w.verifiers):
		w.fail(false, "%s to %s, which not every verifier of serving certificates trusts", action, name)
	}
}

// checkRefused looks whether the last key of a CA goes that somebody accepts.
func (w *world) checkRefused(f Facts) {
	name := string(w.ring.Retiring.Cert)
	if name == "" {
		return
	}
	if w.ledger.sealed(name) { // else it was lost after the seal
		w.left[name] = true
	}
	for _, other := range w.worlds {
		if other != w && (slices.Contains(other.published, name) || requiresTrust(other.object(), w.status.Retiring)) {
			w.saw("a CA goes that another authority publishes")
			return
		}
	}
	if askedToRefuse(w.spec.Signers, f) {
		w.destroyed[name] = true
	}
}

// checkTurn looks at what became of the Secret.
func (w *world) checkTurn(step Step, before keypair.Ring) {
	has := func(ring keypair.Ring, one keypair.Pair) bool {
		return slices.ContainsFunc([]keypair.Pair{ring.TLS, ring.Signing, ring.Candidate, ring.Retiring}, one.Equal)
	}
	s, after := &w.status, w.ring
	if lost := before.TLS; !lost.Empty() && !has(after, lost) && step.Refused == "" {
		w.fail(false, "%s drops what its owner has brought, %s, without a word", step.Action, lost.Cert)
	}
	for _, one := range []keypair.Pair{before.Signing, before.Candidate, before.Retiring} {
		if one.Empty() || has(after, one) {
			continue
		}
		if name := string(one.Cert); s.Signing != nil && name == s.Signing.Certificate || s.Retiring != nil && name == s.Retiring.Certificate && s.UnpublishedAt == nil {
			w.fail(false, "%s loses the key of %s", step.Action, one.Cert)
		}
	}
	switch permit := after.Permit; {
	case after.Signing.Empty():
	case len(after.Signing.Cert) == 0 || len(after.Signing.Key) == 0:
		w.fail(false, "%s leaves half a pair", step.Action)
	case permit.Authority != w.name || !w.mayPermit(string(after.Signing.Cert), permit.Signers):
		w.fail(false, "%s leaves the permit %v", step.Action, permit)
	case !after.Candidate.Empty() && permit.LifetimeCap != oldCap:
		w.fail(false, "%s leaves no cap while a candidate waits", step.Action)
	case after.Candidate.Empty() && permit.LifetimeCap != 0:
		w.fail(false, "%s leaves a cap", step.Action)
	}
}

// mayPermit says whether the CA may sign for signers: for those that were proven, and those whose verifiers are theirs.
func (w *world) mayPermit(ca string, signers []string) bool {
	proven := w.proven[ca]
	if len(signers) < len(w.spec.Signers) {
		w.saw("what signs is not for all")
	}
	return !slices.ContainsFunc(signers, func(name string) bool {
		return !slices.Contains(w.spec.Signers, name) || !slices.Contains(proven, name) && (name == servingSigner || !AsksAPIServers(proven))
	})
}

// broken says what must never be.
func (c *cluster) broken() string {
	for _, w := range c.worlds {
		if w.wrong != "" {
			return w.wrong
		}
		for _, cert := range w.issued {
			if cert.notAfter.After(c.now) && c.alive(cert.ca) && !slices.Contains(w.published, cert.ca) && !w.excuses(cert) && !w.early(cert) {
				return fmt.Sprintf("a certificate of %s for %q lives until %s, and is not published: %s", cert.ca, cert.signer, cert.notAfter.Format(time.RFC3339), w)
			}
		}
	}
	for name := range c.destroyed {
		if n := c.accepted(c.servers, name) + c.accepted(c.aggregated, name); n > 0 {
			return fmt.Sprintf("the key of %s is destroyed, and %d accept it: %v", name, n, c.worlds)
		}
	}
	return ""
}
