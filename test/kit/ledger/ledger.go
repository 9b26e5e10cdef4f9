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
	all := &covers{until: map[string]time.Time{}, half: make(chan struct{})}
	var workers sync.WaitGroup
	for range 3 {
		book := newBook()
		for worker := range 6 {
			workers.Go(func() { all.add(t, book, keyID, fmt.Sprintf("example.com/%d", worker%2), now) })
		}
	}
	<-all.half
	sealer := newBook()
	err := sealer.Seal(t.Context(), keyID)
	for try := 0; err != nil && try < 20; try++ { // the others write too
		err = sealer.Seal(t.Context(), keyID)
	}
	accounts, readErr := sealer.Read(t.Context())
	account := accounts[keyID]
	if err := errors.Join(err, readErr); err != nil || !account.Sealed {
		t.Errorf("sealed: %t, error %v", account.Sealed, err)
	}
	workers.Wait()
	for signerName, end := range all.until {
		if stored := account.Signers[signerName]; end.After(stored) {
			t.Errorf("signer %s was covered until %s, and the ledger says %s", signerName, end, stored)
		}
	}
	if err := newBook().Cover(t.Context(), keyID, "example.com/0", now); !errors.Is(err, ledger.ErrSealed) {
		t.Errorf("a new Book covers: %v", err)
	}
}

// covers are the latest ends that were covered, by signer name.
type covers struct {
	mu     sync.Mutex
	until  map[string]time.Time
	half   chan struct{} // closed when enough is covered for the seal to come in the middle
	enough sync.Once
}

// add covers until the key is sealed.
func (c *covers) add(t testing.TB, book *ledger.Book, keyID, signerName string, now time.Time) {
	enough := func() { c.enough.Do(func() { close(c.half) }) }
	defer enough()
	for began, n := time.Now(), 0; time.Since(began) < 3*ledger.QuietAfter; n++ {
		notAfter := now.Add(time.Duration(n) * time.Minute)
		err := book.Cover(context.WithoutCancel(t.Context()), keyID, signerName, notAfter)
		if errors.Is(err, ledger.ErrSealed) {
			return
		}
		c.mu.Lock()
		if err == nil && notAfter.After(c.until[signerName]) { // after another error nothing is covered
			c.until[signerName] = notAfter
		}
		c.mu.Unlock()
		if n == 100 {
			enough()
		}
	}
	t.Error("it was never sealed")
}
