package authz_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// slow returns an Authorizer that allows after d, and counts the reviews that were sent.
func slow(d time.Duration, sent *atomic.Int32) *authz.Shared {
	return &authz.Shared{Authorizer: authz.Func(
		func(ctx context.Context, _ csr.Requester, _ authorizationv1.ResourceAttributes) (bool, error) {
			sent.Add(1)
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(d):
				return true, nil
			}
		})}
}

// settle lets the reviews end that have no caller any more.
func settle() { time.Sleep(time.Minute) }

// ask asks n times at once, and returns when all have an answer.
func ask(t *testing.T, s *authz.Shared, n int, who csr.Requester) {
	t.Helper()
	var asking sync.WaitGroup
	for range n {
		asking.Go(func() {
			if allowed, err := s.Allowed(t.Context(), who, authorizationv1.ResourceAttributes{}); err != nil || !allowed {
				t.Errorf("allowed %t, error %v", allowed, err)
			}
		})
	}
	asking.Wait()
}

func TestIdenticalReviewsShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		start, s := time.Now(), slow(400*time.Millisecond, &sent)
		for range 2 { // take all places
			go ask(t, s, 1, csr.Requester{Username: "alice"})
			synctest.Wait() // it is sent, so that the next one does not share it
		}
		ask(t, s, 21, csr.Requester{Username: "alice"})
		if n, took := sent.Load(), time.Since(start); n != 3 || took != 800*time.Millisecond {
			t.Errorf("%d reviews in %s, want that 21 share one after the first two", n, took)
		}
	})
}

// TestReviewThatHangsCostsFiveSeconds has a first review without an answer. Its callers share the answer of the next one.
func TestReviewThatHangsCostsFiveSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer settle()
		var hung, sent atomic.Int32
		hangs, answers := slow(time.Hour, &hung), slow(400*time.Millisecond, &sent)
		s := &authz.Shared{Authorizer: authz.Func(
			func(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
				if hung.Load() == 0 {
					return hangs.Authorizer.Allowed(ctx, who, what)
				}
				return answers.Authorizer.Allowed(ctx, who, what)
			})}
		start := time.Now()
		ask(t, s, 25, csr.Requester{Username: "alice"})
		if took := time.Since(start); took > 5400*time.Millisecond || hung.Load() != 1 || sent.Load() > 3 {
			t.Errorf("%d reviews beside the one that hangs, in %s", sent.Load(), took)
		}
	})
}

// TestSlowReviewsAreRepeatedSeldom has reviews of 25 seconds. Each caller gets the answer of its first one.
func TestSlowReviewsAreRepeatedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer settle()
		var sent atomic.Int32
		start, s := time.Now(), slow(25*time.Second, &sent)
		ask(t, s, 25, csr.Requester{Username: "alice"})
		if n, took := sent.Load(), time.Since(start); n > 9 || took > 27*time.Second {
			t.Errorf("%d reviews in %s, want at most three each after 0, 5 and 15 seconds", n, took)
		}
	})
}

func TestReviewsOfDifferentRequestersDoNotShare(t *testing.T) {
	t.Parallel()
	different := []csr.Requester{
		{Username: "alice"}, {Username: "bob"}, {Username: "alice", UID: "1"}, {Username: "alice", Groups: []string{"a", "b"}},
		{Username: "alice", Groups: []string{"a b"}}, {Username: "alice", Groups: []string{`a", "b`}},
		{Username: "alice", Extra: map[string]certificatesv1.ExtraValue{"key": {"value"}}},
		{Username: "alice", Extra: map[string]certificatesv1.ExtraValue{"key": {"other"}}},
	}
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		s := slow(400*time.Millisecond, &sent)
		var asking sync.WaitGroup
		for _, who := range different {
			for range 4 {
				asking.Go(func() { ask(t, s, 1, who) })
			}
		}
		asking.Wait()
		if n := int(sent.Load()); n > 4*len(different) || n < len(different) {
			t.Errorf("%d reviews for %d questions", n, len(different))
		}
	})
}

func TestReviewThatIsSentIsNotShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		s := slow(800*time.Millisecond, &sent)
		go ask(t, s, 1, csr.Requester{})
		time.Sleep(400 * time.Millisecond)
		ask(t, s, 1, csr.Requester{})
		if n := sent.Load(); n != 2 {
			t.Errorf("%d reviews, want 2: the answer would be older than the second question", n)
		}
	})
}

func TestCallerThatLeavesStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		s := slow(400*time.Millisecond, &sent)
		for range 2 { // take all places
			go ask(t, s, 1, csr.Requester{})
			synctest.Wait() // it is sent, so that the next one does not share it
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		left := make(chan error, 1)
		go func() {
			_, err := s.Allowed(ctx, csr.Requester{}, authorizationv1.ResourceAttributes{})
			left <- err
		}()
		synctest.Wait()
		ask(t, s, 3, csr.Requester{})
		if err := <-left; !errors.Is(err, context.DeadlineExceeded) || sent.Load() != 3 {
			t.Errorf("error %v, %d reviews", err, sent.Load())
		}
	})
}

func TestReviewsThatFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer settle()
		panics := &authz.Shared{Authorizer: authz.Func(
			func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
				panic("defect")
			})}
		for range 10 { // each place is free again
			if allowed, err := panics.Allowed(t.Context(), csr.Requester{}, authorizationv1.ResourceAttributes{}); allowed ||
				err == nil || err.Error() != "review: panic: defect" {
				t.Errorf("allowed %t, error %v", allowed, err)
			}
		}
		var sent atomic.Int32
		hangs, start := slow(time.Hour, &sent), time.Now()
		if allowed, err := hangs.Allowed(t.Context(), csr.Requester{}, authorizationv1.ResourceAttributes{}); allowed ||
			!errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 45*time.Second || sent.Load() != 4 {
			t.Errorf("allowed %t, error %v after %s and %d reviews", allowed, err, time.Since(start), sent.Load())
		}
	})
}
