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

// Seal runs three Books that cover certificates of keyID concurrently, each time for longer, so that some calls need a write. Another
// Book seals the key after a while. Everything that they cover before, during and after the seal must be within the account
// that was read right after it.
func Seal(t testing.TB, keyID string, now time.Time, newBook func() *ledger.Book) {
	t.Helper()
	if err := newBook().Open(t.Context(), keyID); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	covered := map[string]time.Time{} // the latest end by signer name
	var workers sync.WaitGroup
	half := make(chan struct{}) // closed when enough is covered for the seal to come in the middle
	var once sync.Once
	enough := func() { once.Do(func() { close(half) }) }
	issue := func(book *ledger.Book, signerName string) {
		defer enough()
		for began, n := time.Now(), 0; time.Since(began) < 3*ledger.QuietAfter; n++ {
			notAfter := now.Add(time.Duration(n) * time.Minute)
			switch err := book.Cover(context.WithoutCancel(t.Context()), keyID, signerName, notAfter); {
			case errors.Is(err, ledger.ErrSealed):
				return
			case err == nil: // after another error nothing is covered
				mu.Lock()
				if notAfter.After(covered[signerName]) {
					covered[signerName] = notAfter
				}
				mu.Unlock()
			}
			if n == 100 {
				enough()
			}
		}
		t.Error("it was never sealed")
	}
	for range 3 {
		book := newBook()
		for worker := range 6 {
			workers.Go(func() { issue(book, fmt.Sprintf("example.com/%d", worker%2)) })
		}
	}
	<-half
	sealer := newBook()
	err := sealer.Seal(t.Context(), keyID)
	for try := 0; err != nil && try < 20; try++ { // the others write too
		err = sealer.Seal(t.Context(), keyID)
	}
	accounts, readErr := sealer.Read(t.Context())
	if err := errors.Join(err, readErr); err != nil || !accounts[keyID].Sealed {
		t.Errorf("sealed: %t, error %v", accounts[keyID].Sealed, err)
	}
	workers.Wait()
	for signerName, end := range covered {
		if stored := accounts[keyID].Signers[signerName]; end.After(stored) {
			t.Errorf("signer %s was covered until %s, and the ledger says %s", signerName, end, stored)
		}
	}
	if err := newBook().Cover(t.Context(), keyID, "example.com/0", now); !errors.Is(err, ledger.ErrSealed) {
		t.Errorf("a new Book covers: %v", err)
	}
}
