package authz_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

type attributes = authorizationv1.ResourceAttributes

// creator is a client that answers SubjectAccessReviews. Every other call panics.
type creator struct {
	client.Client
	sent   authorizationv1.SubjectAccessReviewSpec
	status authorizationv1.SubjectAccessReviewStatus
	err    error
}

func (c *creator) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	review := obj.(*authorizationv1.SubjectAccessReview)
	c.sent, review.Status = *review.Spec.DeepCopy(), c.status
	return c.err
}

// TestSubjectAccess checks the review that is sent, and that only its field allowed counts.
func TestSubjectAccess(t *testing.T) {
	type status = authorizationv1.SubjectAccessReviewStatus
	who := csr.Requester{
		Username: "ü", UID: "uid", Groups: []string{"b", "a", "b"},
		Extra: map[string]certificatesv1.ExtraValue{"example.com/key": {"x", "y"}, "empty": {}},
	}
	what := attributes{Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Verb: "create", Subresource: "nodeclient", Version: "*"}
	sent := authorizationv1.SubjectAccessReviewSpec{
		User: "ü", UID: "uid", Groups: []string{"b", "a", "b"}, ResourceAttributes: &what,
		Extra: map[string]authorizationv1.ExtraValue{"example.com/key": {"x", "y"}, "empty": {}},
	}
	for name, test := range map[string]struct {
		status status
		err    error
		want   string
	}{
		"denied":                         {status: status{Denied: true, Reason: "because"}, want: "false <nil>"},
		"yes, though evaluation stopped": {status: status{Allowed: true, EvaluationError: "x"}, want: "true <nil>"},
		"no, and evaluation stopped":     {status: status{EvaluationError: "x"}, want: "false <nil>"},
		"a fault is no answer":           {status: status{Allowed: true}, err: errors.New("down"), want: "false create SubjectAccessReview: down"},
	} {
		asker := &creator{status: test.status, err: test.err}
		allowed, err := authz.SubjectAccess{Client: asker}.Allowed(t.Context(), who, what)
		expect.Equal(t, name, fmt.Sprint(allowed, err), test.want)
		expect.Equal(t, name+": review", asker.sent, sent)
	}
}

// shared is a Shared whose reviews allow after a time. It counts those that were sent.
type shared struct {
	authz.Shared
	sent atomic.Int32
}

// share calls test in a bubble, with reviews that take as long as takes.
func share(t *testing.T, takes time.Duration, test func(*testing.T, *shared)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &shared{}
		s.Authorizer = authz.Func(func(ctx context.Context, _ csr.Requester, _ attributes) (bool, error) {
			s.sent.Add(1)
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(takes):
				return true, nil
			}
		})
		test(t, s)
		time.Sleep(time.Minute) // the reviews end that have no caller any more
	})
}

// ask asks n times at once. It returns how long that took, and the number of reviews that were sent.
func (s *shared) ask(t *testing.T, n int, who ...csr.Requester) (took time.Duration, sent int) {
	t.Helper()
	var asking sync.WaitGroup
	start := time.Now()
	for range n {
		for _, each := range who {
			asking.Go(func() {
				allowed, err := s.Allowed(t.Context(), each, attributes{})
				expect.True(t, err == nil && allowed, "allowed %t, error %v", allowed, err)
			})
		}
	}
	asking.Wait()
	return time.Since(start), int(s.sent.Load())
}

// fill takes both places for reviews of who.
func (s *shared) fill(t *testing.T, who csr.Requester) {
	t.Helper()
	for range 2 {
		go s.ask(t, 1, who)
		synctest.Wait() // it is sent, so that the next one does not share it
	}
}

var alice = csr.Requester{Username: "alice"}

const short = 400 * time.Millisecond

// TestIdenticalReviewsShare has reviews that wait for a place. All of them share one, unless their requesters differ in one
// thing.
func TestIdenticalReviewsShare(t *testing.T) {
	extra := func(value string) map[string]certificatesv1.ExtraValue {
		return map[string]certificatesv1.ExtraValue{"key": {value}}
	}
	different := []csr.Requester{
		alice, {Username: "bob"}, {Username: "alice", UID: "1"}, {Username: "alice", Groups: []string{"a", "b"}},
		{Username: "alice", Groups: []string{"a b"}}, {Username: "alice", Groups: []string{`a", "b`}},
		{Username: "alice", Extra: extra("value")}, {Username: "alice", Extra: extra("other")},
	}
	share(t, short, func(t *testing.T, s *shared) {
		for _, who := range different {
			s.fill(t, who)
		}
		took, sent := s.ask(t, 21, different...)
		expect.Equal(t, "reviews: two, and then one for each that is shared", sent, 3*len(different))
		expect.Equal(t, "the time that they took", took, 2*short)
	})
}

// TestReviewThatIsSentIsNotShared checks that no answer is older than its question.
func TestReviewThatIsSentIsNotShared(t *testing.T) {
	share(t, 2*short, func(t *testing.T, s *shared) {
		go s.ask(t, 1, alice)
		time.Sleep(short)
		_, sent := s.ask(t, 1, alice)
		expect.Equal(t, "reviews", sent, 2)
	})
}

// TestCallerThatLeavesStopsNoOther has a caller that leaves before the review that it would share is sent.
func TestCallerThatLeavesStopsNoOther(t *testing.T) {
	share(t, short, func(t *testing.T, s *shared) {
		s.fill(t, alice)
		ctx, cancel := context.WithTimeout(t.Context(), short/4)
		defer cancel()
		left := make(chan error, 1)
		go func() {
			_, err := s.Allowed(ctx, alice, attributes{})
			left <- err
		}()
		synctest.Wait()
		_, sent := s.ask(t, 3, alice)
		expect.True(t, errors.Is(<-left, context.DeadlineExceeded) && sent == 3, "%d reviews, want 3, and that the caller has left", sent)
	})
}

// TestReviewsThatFail checks that a review that panics frees its place, and that a review that hangs ends after 45 seconds.
func TestReviewsThatFail(t *testing.T) {
	share(t, 0, func(t *testing.T, s *shared) {
		s.Authorizer = authz.Func(func(context.Context, csr.Requester, attributes) (bool, error) { panic("defect") })
		for range 10 {
			allowed, err := s.Allowed(t.Context(), alice, attributes{})
			expect.True(t, !allowed && err != nil && err.Error() == "review: panic: defect", "allowed %t, error %v", allowed, err)
		}
	})
	share(t, time.Hour, func(t *testing.T, s *shared) {
		start := time.Now()
		if allowed, err := s.Allowed(t.Context(), alice, attributes{}); allowed || !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(start) != 45*time.Second || s.sent.Load() != 1 {
			t.Errorf("allowed %t, error %v after %s and %d reviews", allowed, err, time.Since(start), s.sent.Load())
		}
	})
}
