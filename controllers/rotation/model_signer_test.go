package rotation

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"slices"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// leafKey is the public key of all certificates.
var leafKey = func() *ecdsa.PublicKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return &key.PublicKey
}()

// standsStill is the longest time between the reservation of a certificate in the ledger and its issuance.
// ledger.QuietAfter also includes a reserve of five seconds.
const standsStill = ledger.QuietAfter - 5*time.Second

// signer is a signing process with its last view of the Secret. It may have reserved one certificate in the ledger that
// it has not signed yet.
type signer struct {
	view    keypair.Ring
	book    *ledger.Book
	covered *certificate
}

func newSigner(a *authority) *signer {
	return &signer{book: ledger.NewBook(a.owner, a.owner, a.secret(), a.clock)}
}

// read reads the Secret as the signer's source does: if the new content is invalid, the last one stays in use.
func (s *signer) read(a *authority) {
	if ring := a.ring(); a.alive(string(ring.Signing.Cert)) {
		s.view = ring
	}
}

// sign acts as the signer controller for one request. It reports whether it has signed.
func (s *signer) sign(a *authority, name string, lifetime time.Duration) bool {
	if s.covered != nil && a.now().Sub(s.covered.at) < standsStill {
		a.issue(*s.covered)
	}
	s.covered = nil
	ca := string(s.view.Signing.Cert)
	if !a.alive(ca) || !slices.Contains(s.view.Permit.Signers, name) {
		return false
	}
	if longest := s.view.Permit.LifetimeCap; longest > 0 {
		lifetime = min(lifetime, longest)
	}
	authority := a.cas[ca].authority
	notAfter := a.now().Add(lifetime).Truncate(time.Second)
	if notAfter.After(authority.NotAfter()) {
		notAfter = authority.NotAfter()
	}
	if err := s.book.Cover(context.Background(), authority.KeyID(), name, notAfter); err != nil {
		a.seen["not covered"]++
		return false
	}
	if a.sealed(ca) {
		a.saw("covered by a reserve after the seal")
	}
	cert := certificate{ca: ca, signer: name, at: a.now(), notAfter: notAfter}
	if !a.quiet && a.chance(4) {
		s.covered = &cert
		return true
	}
	a.issue(cert)
	return true
}
