package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// stalled is a Slow source that answers when the test permits it.
type stalled struct {
	release chan error

	mu    sync.Mutex
	asked []string
}

func (*stalled) Name() string     { return "stalled" }
func (*stalled) Concurrency() int { return 4 }

func (s *stalled) Lookup(ctx context.Context, node string, req *csr.Request) (*Entry, error) {
	s.mu.Lock()
	s.asked = append(s.asked, fmt.Sprintf("%s for %s", node, req.Name))
	s.mu.Unlock()
	select {
	case err := <-s.release:
		if err != nil {
			return nil, err
		}
		return &Entry{Source: "stalled " + node}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func requestOf(user, name string) *csr.Request {
	return &csr.Request{Name: name, UID: types.UID("uid-of-" + name), Requester: csr.Requester{Username: user}}
}

// TestBackgroundWaitsForNothing checks that Background does not wait, that it keeps the answer for a request until
// Forget, and that each request gets its own answer.
func TestBackgroundWaitsForNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &stalled{release: make(chan error)}
		var told atomic.Int32
		b := NewBackground(source, clock.RealClock{}, func(string) { told.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = b.Start(ctx) })
		defer running.Wait()
		defer cancel()
		sources := Sources{b}
		first, second := requestOf("alice", "csr-1"), requestOf("bob", "csr-2")
		waits := func(req *csr.Request, node string) {
			t.Helper()
			_, err := sources.Lookup(t.Context(), node, req)
			waiting, unavailable := (*pending.Waiting)(nil), (*Unavailable)(nil)
			if !errors.As(err, &waiting) || !errors.As(err, &unavailable) || unavailable.Source != "stalled" {
				t.Fatalf("%s of %s: %v", node, req.Name, err)
			}
			synctest.Wait()
		}
		waits(first, "a")
		waits(first, "a")
		waits(second, "a")
		if len(source.asked) != 2 {
			t.Fatalf("asked %q", source.asked)
		}
		source.release <- nil
		source.release <- nil
		synctest.Wait()
		if n := told.Load(); n != 2 {
			t.Errorf("%d requests were told", n)
		}
		waits(first, "rival")
		source.release <- errors.New("down")
		synctest.Wait()
		for range 2 {
			if found, err := sources.Lookup(t.Context(), "a", first); err != nil || found.Source != "stalled a" {
				t.Errorf("%+v, %v", found, err)
			}
			if _, err := sources.Lookup(t.Context(), "rival", first); err == nil || err.Error() != "ask stalled: down" {
				t.Errorf("the fault is %v", err)
			}
		}
		b.Forget(first.UID)
		waits(first, "rival")
		b.Forget(first.UID)
		b.Forget(second.UID)
	})
}

// However many requests of one requester wait, other requesters get half of the lookups.
func TestBackgroundLeavesHalfToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &stalled{release: make(chan error)}
		b := NewBackground(source, clock.RealClock{}, func(string) {})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = b.Start(ctx) })
		defer running.Wait()
		defer cancel()
		for i := range 100 {
			_, _ = b.Lookup(t.Context(), "a", requestOf("hostile", fmt.Sprint("hostile-", i)))
		}
		synctest.Wait()
		if len(source.asked) != 2 {
			t.Errorf("%d lookups of one requester are under way", len(source.asked))
		}
		_, _ = b.Lookup(t.Context(), "b", requestOf("honest", "csr-1"))
		synctest.Wait()
		if len(source.asked) != 3 || source.asked[2] != "b for csr-1" {
			t.Errorf("asked %q", source.asked)
		}
	})
}
