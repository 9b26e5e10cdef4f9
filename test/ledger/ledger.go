// Package ledger tries the promise of internal/ledger on any API server: what is read after a seal is all that was ever covered.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// tally is what was covered, by signer name, as Entry says it.
type tally struct {
	mu     sync.Mutex
	issued map[string]ledger.Entry
	total  int
}

func (t *tally) add(signerName string, notAfter time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	entry := t.issued[signerName]
	entry.Count++
	if notAfter.After(entry.NotAfter) {
		entry.NotAfter = notAfter
	}
	t.issued[signerName] = entry
	t.total++
}

// within says what of the tally the account does not hold.
func (t *tally) within(account ledger.Account) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for signerName, entry := range t.issued {
		stored := account.Signers[signerName]
		if entry.Count > stored.Count || entry.NotAfter.After(stored.NotAfter) {
			return fmt.Errorf("signer %s was covered %d times until %s, and the ledger says %d until %s", signerName, entry.Count, entry.NotAfter, stored.Count, stored.NotAfter)
		}
	}
	return nil
}

// Seal has three Books issue by keyID at once, each for longer than the last time, and another one seal it after a while.
// Whatever they cover before, during and after must be within what was read right after the seal.
func Seal(t testing.TB, keyID string, now time.Time, newBook func() *ledger.Book) {
	t.Helper()
	if err := newBook().Open(t.Context(), keyID); err != nil {
		t.Fatal(err)
	}
	issued := &tally{issued: map[string]ledger.Entry{}}
	var workers sync.WaitGroup
	half := make(chan struct{}) // closed when enough was issued for the seal to come in the middle
	var once sync.Once
	for range 3 {
		book := newBook()
		for worker := range 6 {
			signerName := fmt.Sprintf("example.com/%d", worker%2)
			workers.Go(func() {
				defer once.Do(func() { close(half) })
				issue(t, book, keyID, signerName, now, issued, func() { once.Do(func() { close(half) }) })
			})
		}
	}
	<-half
	account := closeAccount(t, newBook(), keyID)
	workers.Wait()
	if !account.Sealed {
		t.Error("it is not sealed")
	}
	if err := issued.within(account); err != nil {
		t.Error(err)
	}
	if err := newBook().Cover(t.Context(), keyID, "example.com/0", now); !errors.Is(err, ledger.ErrSealed) {
		t.Errorf("a new Book covers: %v", err)
	}
}

// closeAccount seals, against whatever writes at the same time, and returns what it reads then.
func closeAccount(t testing.TB, sealer *ledger.Book, keyID string) ledger.Account {
	t.Helper()
	err := sealer.Seal(t.Context(), keyID)
	for range 20 {
		if err != nil {
			err = sealer.Seal(t.Context(), keyID)
		}
	}
	accounts, readErr := sealer.Read(t.Context())
	if err := errors.Join(err, readErr); err != nil {
		t.Error(err)
	}
	return accounts[keyID]
}

// issue covers until the key is sealed. A Cover that fails otherwise covers nothing, and is tried again.
func issue(t testing.TB, book *ledger.Book, keyID, signerName string, now time.Time, issued *tally, enough func()) {
	for n := range 10_000 {
		notAfter := now.Add(time.Duration(n) * 5 * time.Second)
		err := book.Cover(context.WithoutCancel(t.Context()), keyID, signerName, notAfter)
		switch {
		case err == nil:
			issued.add(signerName, notAfter)
		case errors.Is(err, ledger.ErrSealed):
			return
		}
		if n == 100 {
			enough()
		}
	}
	t.Error("it was never sealed")
}
