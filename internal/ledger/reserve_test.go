package ledger_test

import (
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// TestAReserveEnds checks that a Book with a reserve notices within seconds that the account is closed, and stops
// covering.
func TestAReserveEnds(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	clock := clocktesting.NewFakePassiveClock(now)
	book := ledger.NewBook(s, s, secret, clock)
	cover := func() error { return book.Cover(t.Context(), key, web, now.Add(time.Hour)) }
	succeed(t, cover())
	succeed(t, s.book().Seal(t.Context(), key))
	clock.SetTime(now.Add(4 * time.Second))
	succeed(t, cover()) // within the earlier reserve
	clock.SetTime(now.Add(6 * time.Second))
	if err := cover(); !errors.Is(err, ledger.ErrSealed) {
		t.Errorf("after the reserve has ended: %v", err)
	}
	if got := s.stored(t)[key].Signers[web].Count; got != 64 {
		t.Errorf("counted %d", got)
	}
	succeed(t, s.book().Unseal(t.Context(), key))
	succeed(t, cover())
}

// TestAReserveIsRenewed checks that reading the account renews a reserve: its certificates are not counted again, and
// nothing is written.
func TestAReserveIsRenewed(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	clock := clocktesting.NewFakePassiveClock(now)
	book := ledger.NewBook(s, s, secret, clock)
	for i := range 65 {
		clock.SetTime(now.Add(time.Duration(i) * time.Minute / 2))
		succeed(t, book.Cover(t.Context(), key, web, now.Add(time.Hour)))
		want := 64
		if i == 64 {
			want = 128
		}
		if got := s.stored(t)[key].Signers[web].Count; got != want {
			t.Fatalf("after %d certificates %d are counted", i+1, got)
		}
	}
	if writes := s.writes.Load(); writes != 2 {
		t.Errorf("%d writes", writes)
	}
}

// TestAReserveSurvivesAFailure checks that a reserve is counted once, even if the account could not be read in
// between.
func TestAReserveSurvivesAFailure(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	book := s.book()
	succeed(t, book.Cover(t.Context(), key, web, now.Add(time.Hour)))
	s.before = func() error { return errors.New("away") }
	if err := book.Cover(t.Context(), key, web, now.Add(48*time.Hour)); err == nil {
		t.Error("covered what could not be written")
	}
	s.before = nil
	for range 63 {
		succeed(t, book.Cover(t.Context(), key, web, now.Add(time.Hour)))
	}
	if got := s.stored(t)[key].Signers[web].Count; got != 64 {
		t.Errorf("counted %d", got)
	}
}
