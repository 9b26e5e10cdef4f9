package rotation

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// anySigner stands for the signer of outstanding certificates whose ledger is lost.
const anySigner = "any signer (the ledger of this CA is lost)"

// promises holds the owner's statements and actions that allow a certificate to break.
type promises struct {
	// named holds the outstanding certificates that the owner accepted, by CA. acceptedAt is the time of the
	// acceptance.
	named      map[string][]v1alpha1.Outstanding
	acceptedAt map[string]time.Time
	// excused holds the CAs about which the owner made a false statement, and the CAs whose key and status are lost at
	// once.
	excused map[string]bool
	// left holds the CAs that have retired here, according to the ledger.
	left map[string]bool
}

func newPromises() promises {
	return promises{map[string][]v1alpha1.Outstanding{}, map[string]time.Time{}, map[string]bool{}, map[string]bool{}}
}

func (a *authority) excuse(cert string) { a.excused[cert] = true }

func (a *authority) fail(format string, args ...any) {
	if a.wrong == "" {
		a.wrong = fmt.Sprintf(format, args...) + ": " + a.String()
	}
}

// excuses reports whether the owner has allowed the certificate to break.
func (a *authority) excuses(cert certificate) bool {
	if a.excused[cert.ca] {
		return true
	}
	// A known weakness: the acceptance also covers certificates that a late signer issues after it, before the account is closed.
	if at, accepted := a.acceptedAt[cert.ca]; accepted && !cert.at.Before(at) {
		return true
	}
	return slices.ContainsFunc(a.named[cert.ca], func(part v1alpha1.Outstanding) bool {
		signer := part.Signer == cert.signer || part.Signer == "" || part.Signer == anySigner
		return signer && !cert.notAfter.After(part.Until.Time)
	})
}

// early reports whether the CA of the certificate does not sign here yet.
func (a *authority) early(cert certificate) bool {
	s := a.status()
	retires := s.Retiring != nil && s.Retiring.Certificate == cert.ca
	return s.Signing == nil || cert.foreign && s.Signing.Certificate != cert.ca && !retires
}

// promised records the owner's promises in the stored status.
func (a *authority) promised(was, is *v1alpha1.SigningAuthorityStatus) {
	accepted := func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Retiring != nil && s.Retiring.OutstandingAcceptedAt != nil
	}
	if accepted(is) && was.Retiring != nil && !accepted(was) {
		a.named[is.Retiring.Certificate] = is.Outstanding
		a.acceptedAt[is.Retiring.Certificate] = a.now()
		a.saw("what is outstanding is accepted")
		if len(is.Outstanding) > 0 {
			a.saw("something is outstanding that is accepted")
		}
	}
	isNew := is.Candidate != nil && !v1alpha1.SameCA(was.Candidate, is.Candidate)
	if isNew && is.Candidate.TrustConfirmedAt != nil && is.Signing == nil { // the owner supplied a trusted CA
		a.also = append(a.also, is.Candidate.Certificate)
		for i := range a.verifiers {
			a.verifiers[i] = append(a.verifiers[i], is.Candidate.Certificate)
		}
	}
	if was.Phase == v1alpha1.New && is.Phase != v1alpha1.New {
		a.excuseUnknown(is)
	}
}

// excuseUnknown excuses CAs that the manager cannot know any more, because they are neither in the Secret nor in the
// status.
func (a *authority) excuseUnknown(s *v1alpha1.SigningAuthorityStatus) {
	var lost []string
	for _, cert := range a.issued {
		if !cert.foreign {
			lost = append(lost, cert.ca)
		}
	}
	for _, signer := range a.signers { // signers keep the CA that they have loaded
		lost = append(lost, string(signer.view.Signing.Cert))
	}
	for _, cert := range lost {
		known := func(authority *v1alpha1.CAStatus) bool { return authority != nil && authority.Certificate == cert }
		if cert != "" && !known(s.Signing) && !known(s.Retiring) {
			a.excuse(cert)
		}
	}
}

func (a *authority) checkStatus(was, is *v1alpha1.SigningAuthorityStatus) {
	for _, authority := range Trusted(is) {
		cert := authority.Certificate
		before := slices.ContainsFunc(Trusted(was), func(other *v1alpha1.CAStatus) bool { return other.Certificate == cert })
		if a.left[cert] && was.Phase != v1alpha1.New && !before {
			a.fail("%s, which has retired here, is to be trusted again", cert)
		}
	}
	if was.UnpublishedAt != nil || is.UnpublishedAt == nil {
		return
	}
	a.saw("a CA is unpublished")
	for _, cert := range a.issued {
		if cert.ca == is.Retiring.Certificate && cert.notAfter.After(a.now()) && !a.excuses(cert) {
			a.fail("completed with a certificate of %s that lives until %s", cert.ca, cert.notAfter)
		}
	}
	for _, signer := range a.signers {
		a.checkReserve(signer, is.Retiring)
	}
}

// checkReserve checks that no late signer can still issue with an unpublished CA.
func (a *authority) checkReserve(s *signer, retiring *v1alpha1.CAStatus) {
	if string(s.view.Signing.Cert) != retiring.Certificate {
		return
	}
	account, _ := a.account(retiring.Certificate)
	for _, name := range s.view.Permit.Signers {
		mark := account.Signers[name]
		cert := certificate{ca: retiring.Certificate, signer: name, at: a.now(), notAfter: mark}
		if !mark.After(a.now()) || a.excuses(cert) {
			continue
		}
		if err := s.book.Cover(context.Background(), retiring.KeyID, name, mark); err == nil {
			a.fail("a signer may issue by %s until %s", retiring.Certificate, mark)
		}
	}
}

// checkAct checks action, which has just changed the Secret. before is the content of the Secret before that.
func (a *authority) checkAct(action Action, before keypair.Ring) {
	switch action {
	case Switch:
		cert := string(before.Candidate.Cert)
		a.checkTrusted(cert, action)
		a.proven[cert] = append(a.proven[cert], a.spec().Signers...)
	case SwapBack:
		cert := string(before.Retiring.Cert)
		a.checkTrusted(cert, action)
		a.proven[cert] = append(a.proven[cert], slices.DeleteFunc(slices.Clone(a.spec().Signers), forServers)...)
	case DestroyRetiring:
		a.checkRefused(string(before.Retiring.Cert))
	}
}

func (a *authority) checkTrusted(cert string, action Action) {
	// A statement of the owner about the CA in another authority counts here too.
	excused := slices.ContainsFunc(a.authorities, func(other *authority) bool { return other.excused[cert] })
	switch {
	case AsksAPIServers(a.spec().Signers) && a.accepted(a.servers, cert) != len(a.servers):
		a.fail("%s to %s, which not every API server trusts", action, cert)
	case a.sealed(cert):
		a.fail("%s to %s, for which the ledger is closed", action, cert)
	case a.left[cert]:
		a.fail("%s to %s, which has retired here", action, cert)
	case len(signersToConfirm(a.spec().Signers)) == 0 || excused:
	case a.accepted(a.verifiers, cert) != len(a.verifiers):
		a.fail("%s to %s, which not every verifier of serving certificates trusts", action, cert)
	}
}

// checkRefused checks the destruction of the last key of a CA: no API server may accept the CA.
func (a *authority) checkRefused(cert string) {
	if cert == "" {
		return
	}
	account, _ := a.account(cert)
	if account.Sealed { // otherwise the account was lost after it was closed
		a.left[cert] = true
	}
	for _, other := range a.authorities {
		if other != a && slices.Contains(other.published(), cert) {
			a.fail("%s goes, which %s publishes", cert, other.name)
		}
	}
	if AsksAPIServers(a.spec().Signers) || AsksAPIServers(account.SignerNames()) {
		a.destroyed[cert] = true
	}
}

func (a *authority) checkTurn(action Action, before, after keypair.Ring) {
	has := func(ring keypair.Ring, pair keypair.Pair) bool {
		return slices.ContainsFunc([]keypair.Pair{ring.TLS, ring.Signing, ring.Candidate, ring.Retiring}, pair.Equal)
	}
	s := a.status()
	if lost := before.TLS; !lost.Empty() && !has(after, lost) && len(a.refused) == a.refusedBefore {
		a.fail("%s drops what its owner has brought, %s, without a word", action, lost.Cert)
	}
	for _, pair := range []keypair.Pair{before.Signing, before.Candidate, before.Retiring} {
		if pair.Empty() || has(after, pair) {
			continue
		}
		signing := s.Signing != nil && string(pair.Cert) == s.Signing.Certificate
		if signing || s.Retiring != nil && string(pair.Cert) == s.Retiring.Certificate && s.UnpublishedAt == nil {
			a.fail("%s loses the key of %s", action, pair.Cert)
		}
	}
	switch permit := after.Permit; {
	case after.Signing.Empty():
	case len(after.Signing.Cert) == 0 || len(after.Signing.Key) == 0:
		a.fail("%s leaves half a pair", action)
	case permit.Authority != a.name || !a.mayPermit(string(after.Signing.Cert), permit.Signers):
		a.fail("%s leaves the permit %v", action, permit)
	case !after.Candidate.Empty() && permit.LifetimeCap != oldCap:
		a.fail("%s leaves no cap while a candidate waits", action)
	case after.Candidate.Empty() && permit.LifetimeCap != 0:
		a.fail("%s leaves a cap", action)
	}
}

// mayPermit reports whether the CA may sign for signers: the proven ones, and those with the same verifiers.
func (a *authority) mayPermit(cert string, signers []string) bool {
	proven := a.proven[cert]
	if len(signers) < len(a.spec().Signers) {
		a.saw("what signs is not for all")
	}
	return !slices.ContainsFunc(signers, func(name string) bool {
		verifiedAlike := name != servingSigner && AsksAPIServers(proven)
		return !slices.Contains(a.spec().Signers, name) || !slices.Contains(proven, name) && !verifiedAlike
	})
}

// broken returns a violation of an invariant, or an empty text.
func (c *cluster) broken() string {
	for _, a := range c.authorities {
		if a.wrong != "" {
			return a.wrong
		}
		published := a.published()
		for _, cert := range a.issued {
			lives := cert.notAfter.After(c.now()) && c.alive(cert.ca)
			if lives && !slices.Contains(published, cert.ca) && !a.excuses(cert) && !a.early(cert) {
				return fmt.Sprintf("a certificate of %s for %q lives until %s, and is not published: %s",
					cert.ca, cert.signer, cert.notAfter.Format(time.RFC3339), a)
			}
		}
	}
	for cert := range c.destroyed {
		if n := c.accepted(c.servers, cert); n > 0 {
			return fmt.Sprintf("the key of %s is destroyed, and %d accept it: %v", cert, n, c.authorities)
		}
	}
	return ""
}
