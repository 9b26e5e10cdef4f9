// Package ledger tests a promise of internal/ledger on any API server: a read after a seal returns all that was ever
// covered.
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

// tally holds the latest end that was covered, by signer name.
type tally struct {
	mu     sync.Mutex
	issued map[string]time.Time
}

func (t *tally) add(signerName string, notAfter time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if notAfter.After(t.issued[signerName]) {
		t.issued[signerName] = notAfter
	}
}

// within returns an error for the part of the tally that the account does not include.
func (t *tally) within(account ledger.Account) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for signerName, end := range t.issued {
		if stored := account.Signers[signerName]; end.After(stored) {
			return fmt.Errorf("signer %s was covered until %s, and the ledger says %s", signerName, end, stored)
		}
	}
	return nil
}

// Seal runs three Books that issue by keyID concurrently, each time for longer, and another Book that seals the key
// after a while. Everything that they cover before, during and after the seal must be within the account that was
// read right after it.
func Seal(t testing.TB, keyID string, now time.Time, newBook func() *ledger.Book) {
	t.Helper()
	if err := newBook().Open(t.Context(), keyID); err != nil {
		t.Fatal(err)
	}
	issued := &tally{issued: map[string]time.Time{}}
	var workers sync.WaitGroup
	half := make(chan struct{}) // closed when enough certificates were issued for the seal to come in the middle
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

// closeAccount seals the account against concurrent writers, and returns the account that it reads then.
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

// issue covers until the key is sealed, each time for longer, so that some calls need a write. If Cover fails otherwise, it
// covers nothing, and issue retries.
func issue(t testing.TB, book *ledger.Book, keyID, signerName string, now time.Time, issued *tally, enough func()) {
	for began, n := time.Now(), 0; time.Since(began) < 3*ledger.QuietAfter; n++ {
		notAfter := now.Add(time.Duration(n) * time.Minute)
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
