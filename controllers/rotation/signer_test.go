package rotation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// accounts are the ConfigMap of a ledger.Book.
type accounts map[string]*ledger.Account

func (a accounts) open(keyID string) {
	if a[keyID] == nil {
		a[keyID] = &ledger.Account{Signers: map[string]ledger.Entry{}}
	}
}

func (a accounts) sealed(keyID string) bool { return a[keyID] != nil && a[keyID].Sealed }

// take is Book.Import.
func (a accounts) take(keyID string, from *ledger.Account, signers []string) {
	a.open(keyID)
	for _, signer := range signers {
		if entry, found := from.Signers[signer]; found {
			raise(a[keyID], signer, entry)
		}
	}
}

// raise is Account.raise.
func raise(account *ledger.Account, signer string, least ledger.Entry) {
	entry := account.Signers[signer]
	entry.Count = max(entry.Count, least.Count)
	if least.NotAfter.After(entry.NotAfter) {
		entry.NotAfter = least.NotAfter
	}
	account.Signers[signer] = entry
}

func (a accounts) String() string {
	var b strings.Builder
	for keyID, account := range a {
		fmt.Fprintf(&b, "%s %v;", keyID, *account)
	}
	return b.String()
}

const (
	// block is how many certificates a Book reserves at a time.
	block = 64
	// reserveFor is how long a Book uses them without another look.
	reserveFor = 5 * time.Second
	// standsStill is how long a signer may take from what was covered to what is issued: see ledger.QuietAfter.
	standsStill = ledger.QuietAfter - reserveFor
)

// reserve is what a Book knows to be stored for one signer, and how many of it nobody has used.
type reserve struct {
	ledger.Entry
	left   int
	until  time.Time
	sealed bool
}

// book is a ledger.Book with one caller at a time.
type book struct {
	keyID   string
	entries map[string]*reserve // by signer, of keyID
}

// cover is Book.Cover. It says whether it needed no write too.
func (b *book) cover(stored accounts, keyID, signer string, now, notAfter time.Time) (covered, reserved bool) {
	if b.keyID != keyID {
		b.keyID, b.entries = keyID, map[string]*reserve{}
	}
	known := b.entries[signer]
	if known != nil && !known.sealed && known.left > 0 && !known.NotAfter.Before(notAfter) && now.Before(known.until) {
		known.left--
		return true, true
	}
	account := stored[keyID]
	if account == nil {
		for _, one := range b.entries {
			one.left = 0
		}
		return false, false
	}
	if known == nil {
		known = &reserve{}
		b.entries[signer] = known
	}
	if known.sealed = account.Sealed; known.sealed {
		known.left = 0
		return false, false
	}
	raise(account, signer, known.Entry)
	entry := account.Signers[signer]
	if known.left == 0 {
		entry.Count += block
		known.left = block
	}
	if entry.NotAfter.Before(notAfter) {
		entry.NotAfter = notAfter.Add(min(max(notAfter.Sub(now)/16, time.Minute), day)).Add(time.Second - 1).Truncate(time.Second)
	}
	account.Signers[signer] = entry
	known.Entry, known.left, known.until = entry, known.left-1, now.Add(reserveFor)
	return true, false
}

// certificate is one that was issued; foreign is by somebody else, before its CA came here.
type certificate struct {
	ca, signer   string
	at, notAfter time.Time
	foreign      bool
	// reserved is that its signer asked nobody: the ledger had it before.
	reserved bool
}

// signer is a process that signs, by the Secret as it has seen it last, with a reserve of its own. It may have one certificate
// covered that it has not signed yet.
type signer struct {
	view    keypair.Ring
	book    book
	covered *certificate
}

func newSigner() *signer { return &signer{} }

// read is KeyPair.offerRing: what can't be used leaves what is in use.
func (s *signer) read(w *world) {
	if !w.ring.Signing.Empty() && w.alive(string(w.ring.Signing.Cert)) {
		s.view = w.ring
	}
}

// sign is Reconciler.sign of the signer controller. It says whether it has signed.
func (s *signer) sign(w *world, name string, lifetime time.Duration) bool {
	if s.covered != nil && w.now.Sub(s.covered.at) < standsStill {
		w.issue(*s.covered)
	}
	s.covered = nil
	ca := string(s.view.Signing.Cert)
	if ca == "" || !w.alive(ca) || !slices.Contains(s.view.Permit.Signers, name) {
		return false
	}
	if longest := s.view.Permit.LifetimeCap; longest > 0 {
		lifetime = min(lifetime, longest)
	}
	notAfter := w.now.Add(lifetime)
	if notAfter.After(w.ends[ca]) {
		notAfter = w.ends[ca]
	}
	covered, reserved := s.book.cover(w.ledger, ca, name, w.now, notAfter)
	if !covered {
		w.seen["not covered"]++
		return false
	}
	cert := certificate{ca: ca, signer: name, at: w.now, notAfter: notAfter, reserved: reserved}
	if reserved && w.ledger.sealed(ca) {
		w.saw("covered by a reserve after the seal")
	}
	if !w.quiet && w.chance(4) {
		s.covered = &cert
		return true
	}
	w.issue(cert)
	return true
}

// issue is what has been covered.
func (w *world) issue(cert certificate) {
	if !cert.notAfter.After(w.now) {
		return
	}
	w.tell("%s issues by %s for %s until %s, from its reserve: %t", w.name, cert.ca, cert.signer, cert.notAfter, cert.reserved)
	if w.status.Signing != nil && cert.ca != w.status.Signing.Certificate {
		w.saw("issued by what does not sign any more")
	}
	if !slices.Contains(w.published, cert.ca) && !w.excuses(cert) {
		w.fail(false, "a certificate is issued by %s, and %v is published", cert.ca, w.published)
	}
	w.issued = append(w.issued, cert)
}

// record is what ledger.Recorder has stored of what was seen issued.
func (w *world) record() {
	for _, cert := range w.issued[:w.recorded] {
		account := w.ledger[cert.ca]
		if cert.foreign || account == nil || !account.Signers[cert.signer].NotAfter.Before(cert.notAfter) {
			continue
		}
		w.saw("what was issued is noted after")
		raise(account, cert.signer, ledger.Entry{Count: account.Signers[cert.signer].Count + 1, NotAfter: cert.notAfter})
	}
}

// early says whether the certificate is of a CA that does not sign here yet.
func (w *world) early(cert certificate) bool {
	return w.status.Signing == nil || cert.foreign && w.status.Signing.Certificate != cert.ca && (w.status.Retiring == nil || w.status.Retiring.Certificate != cert.ca)
}
