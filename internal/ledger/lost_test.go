package ledger_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// TestALostAccountIsNotMadeUp checks that a client that knows only a part of the certificates does not recreate a
// lost ledger.
func TestALostAccountIsNotMadeUp(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	running := s.book()
	succeed(t, running.Cover(t.Context(), key, node, now.Add(365*24*time.Hour)))
	succeed(t, s.Delete(t.Context(), stored(nil)))
	for name, book := range map[string]*ledger.Book{"restarted": s.book(), "running": running} {
		for what, err := range map[string]error{
			"cover": book.Cover(t.Context(), key, web, now.Add(time.Hour)),
			"raise": book.Raise(t.Context(), key, web, now.Add(time.Hour)),
			"seal":  book.Seal(t.Context(), key), "unseal": book.Unseal(t.Context(), key),
			"import what was not read": book.Import(t.Context(), key, ledger.Account{}, []string{web}),
		} {
			if !errors.Is(err, ledger.ErrNoAccount) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
	if err := running.Cover(t.Context(), key, node, now.Add(time.Hour)); !errors.Is(err, ledger.ErrNoAccount) {
		t.Errorf("of what it has reserved, once it knows: %v", err)
	}
	if diff := cmp.Diff(map[string]ledger.Account{}, s.stored(t)); diff != "" {
		t.Errorf("written: %s", diff)
	}
}

// TestAnAccountThatWasMadeMeanwhile checks that a Book that has cached the ledger finds an account that was created
// since.
func TestAnAccountThatWasMadeMeanwhile(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(*ledger.Book) error{
		"cover": func(b *ledger.Book) error { return b.Cover(t.Context(), other, web, now.Add(time.Hour)) },
		"raise": func(b *ledger.Book) error { return b.Raise(t.Context(), other, web, now.Add(time.Hour)) },
		"seal":  func(b *ledger.Book) error { return b.Seal(t.Context(), other) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(empty(key))
			book := s.book()
			succeed(t, book.Cover(t.Context(), key, web, now.Add(time.Hour)))
			succeed(t, s.book().Open(t.Context(), other))
			succeed(t, use(book))
		})
	}
}

// TestRaiseDoesNotTrustItsMemory checks that Raise records an end again if the account was lost meanwhile.
func TestRaiseDoesNotTrustItsMemory(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	book := s.book()
	succeed(t, book.Raise(t.Context(), key, web, now.Add(time.Hour)))
	succeed(t, s.Delete(t.Context(), stored(nil)))
	if err := book.Raise(t.Context(), key, web, now.Add(time.Hour)); !errors.Is(err, ledger.ErrNoAccount) {
		t.Errorf("without an account: %v", err)
	}
	succeed(t, s.book().Open(t.Context(), key))
	succeed(t, book.Raise(t.Context(), key, web, now.Add(time.Hour)))
	want := map[string]ledger.Account{key: {Signers: map[string]ledger.Entry{web: {Count: 1, NotAfter: now.Add(time.Hour)}}}}
	if diff := cmp.Diff(want, s.stored(t)); diff != "" {
		t.Error(diff)
	}
}

// TestImportMakesTheAccount checks that Import creates the account, even for a signer without an entry in the other
// ledger.
func TestImportMakesTheAccount(t *testing.T) {
	t.Parallel()
	s := newServer()
	succeed(t, s.book().Import(t.Context(), key, ledger.Account{Signers: map[string]ledger.Entry{node: {Count: 1, NotAfter: now}}}, []string{web}))
	succeed(t, s.book().Cover(t.Context(), key, web, now.Add(time.Hour)))
}

// TestRecorderWaitsForAnAccount checks that a missing account fails no Flush and loses no note.
func TestRecorderWaitsForAnAccount(t *testing.T) {
	t.Parallel()
	s := newServer(empty(other))
	recorder := &ledger.Recorder{Book: s.book(), Nodes: s.nodes(clocktesting.NewFakePassiveClock(now))}
	for _, keyID := range []string{key, other} {
		recorder.Note(certificateOf("", web, keyID, 0, time.Hour))
	}
	noted := ledger.Account{Signers: map[string]ledger.Entry{web: {Count: 1, NotAfter: now.Add(time.Hour)}}}
	succeed(t, recorder.Flush(t.Context()))
	if diff := cmp.Diff(map[string]ledger.Account{other: noted}, s.stored(t)); diff != "" {
		t.Errorf("without an account: %s", diff)
	}
	succeed(t, s.book().Open(t.Context(), key))
	succeed(t, recorder.Flush(t.Context()))
	if diff := cmp.Diff(map[string]ledger.Account{key: noted, other: noted}, s.stored(t)); diff != "" {
		t.Errorf("with one: %s", diff)
	}
}
