package authz

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// desk is an Authorizer whose answers the test gives, one by one.
type desk struct {
	mu    sync.Mutex
	asked []string
	reply chan answer
}

type answer struct {
	allowed bool
	err     error
}

func (d *desk) Allowed(ctx context.Context, who csr.Requester, _ authorizationv1.ResourceAttributes) (bool, error) {
	d.mu.Lock()
	d.asked = append(d.asked, who.Username)
	d.mu.Unlock()
	select {
	case given := <-d.reply:
		return given.allowed, given.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (d *desk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.asked)
}

// ask asks about user without waiting for the answer.
func ask(ctx context.Context, shared *Shared, user string) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		allowed, err := shared.Allowed(ctx, csr.Requester{Username: user}, authorizationv1.ResourceAttributes{Verb: "create"})
		got <- answer{allowed, err}
	}()
	synctest.Wait()
	return got
}

// inBubble runs test with a desk, and checks that nothing is left behind.
func inBubble(t *testing.T, test func(t *testing.T, shared *Shared, authorizer *desk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		authorizer := &desk{reply: make(chan answer)}
		shared := &Shared{Authorizer: authorizer}
		test(t, shared, authorizer)
		synctest.Wait()
		if len(shared.waiting) > 0 {
			t.Errorf("%d questions are still remembered", len(shared.waiting))
		}
	})
}

func expect(t *testing.T, got <-chan answer, want answer) {
	t.Helper()
	if given := <-got; given.allowed != want.allowed || !errors.Is(given.err, want.err) {
		t.Errorf("answer %+v, want %+v", given, want)
	}
}

func TestIdenticalQuestionsShareTheNextReview(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		first := ask(t.Context(), shared, "a")
		var late []<-chan answer
		for range 20 {
			late = append(late, ask(t.Context(), shared, "a"))
		}
		if authorizer.count() != 1 {
			t.Fatalf("%d reviews while the first is on its way", authorizer.count())
		}
		authorizer.reply <- answer{allowed: false}
		expect(t, first, answer{allowed: false})
		synctest.Wait()
		authorizer.reply <- answer{allowed: true} // newer than every late question
		for _, got := range late {
			expect(t, got, answer{allowed: true})
		}
		if authorizer.count() != 2 {
			t.Errorf("%d reviews for 21 questions", authorizer.count())
		}
	})
}

func TestNothingIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		for _, given := range []answer{{allowed: true}, {allowed: false}, {err: errDown}, {allowed: true}} {
			got := ask(t.Context(), shared, "a")
			authorizer.reply <- given
			expect(t, got, given)
			synctest.Wait()
			if len(shared.waiting) > 0 {
				t.Error("an answered question is remembered")
			}
		}
		if authorizer.count() != 4 {
			t.Errorf("%d reviews for four questions in turn", authorizer.count())
		}
	})
}

var errDown = errors.New("down")

func TestErrorsAreSharedButNotKept(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		first, second, third := ask(t.Context(), shared, "a"), ask(t.Context(), shared, "a"), ask(t.Context(), shared, "a")
		authorizer.reply <- answer{allowed: true}
		expect(t, first, answer{allowed: true})
		synctest.Wait()
		authorizer.reply <- answer{err: errDown}
		expect(t, second, answer{err: errDown})
		expect(t, third, answer{err: errDown})
		again := ask(t.Context(), shared, "a")
		authorizer.reply <- answer{allowed: true}
		expect(t, again, answer{allowed: true})
	})
}

func TestAnotherQuestionDoesNotWait(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		slow, other := ask(t.Context(), shared, "a"), ask(t.Context(), shared, "b")
		if authorizer.count() != 2 {
			t.Fatalf("%d reviews for two different questions", authorizer.count())
		}
		authorizer.reply <- answer{allowed: true}
		authorizer.reply <- answer{allowed: true}
		expect(t, slow, answer{allowed: true})
		expect(t, other, answer{allowed: true})
	})
}

func TestCancellationFailsOnlyItsOwnCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		cause := errors.New("gone home")
		ctx, cancel := context.WithCancelCause(t.Context())
		first, waiting := ask(ctx, shared, "a"), ask(ctx, shared, "a")
		patient := ask(t.Context(), shared, "a")
		cancel(cause)
		expect(t, first, answer{err: cause})
		expect(t, waiting, answer{err: cause})
		synctest.Wait() // the call that only the first one waited for has ended with it
		authorizer.reply <- answer{allowed: true}
		expect(t, patient, answer{allowed: true})
	})
}

func TestAPanicIsAnError(t *testing.T) {
	t.Parallel()
	shared := &Shared{Authorizer: Func(func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) { panic("no") })}
	allowed, err := shared.Allowed(t.Context(), csr.Requester{}, authorizationv1.ResourceAttributes{})
	if allowed || err == nil || err.Error() != "the authorizer panicked: no" {
		t.Errorf("%t, %v", allowed, err)
	}
}

func TestWhoeverComesAfterAllHaveLeftAsksAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		ctx, cancel := context.WithCancel(t.Context())
		busy, left := ask(t.Context(), shared, "a"), ask(ctx, shared, "a")
		cancel()
		expect(t, left, answer{err: context.Canceled})
		late := ask(t.Context(), shared, "a")
		authorizer.reply <- answer{allowed: true}
		expect(t, busy, answer{allowed: true})
		synctest.Wait()
		authorizer.reply <- answer{allowed: true}
		expect(t, late, answer{allowed: true})
	})
}

func TestAReviewThatHangsIsGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		began := time.Now()
		first, second := ask(t.Context(), shared, "a"), ask(t.Context(), shared, "a")
		expect(t, first, answer{err: context.DeadlineExceeded})
		expect(t, second, answer{err: context.DeadlineExceeded})
		if took := time.Since(began); took != reviewTimeout+nextReview {
			t.Errorf("two reviews of 30 s took %s", took)
		}
	})
}

// TestAReviewThatHangsHoldsUpNoOther answers the second review while the first one hangs.
func TestAReviewThatHangsHoldsUpNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		first, second := ask(t.Context(), shared, "a"), ask(t.Context(), shared, "a")
		if sent := authorizer.count(); sent != 1 {
			t.Errorf("%d reviews were sent at once", sent)
		}
		time.Sleep(nextReview)
		synctest.Wait()
		if sent := authorizer.count(); sent != 2 {
			t.Fatalf("%d reviews were sent after %s", sent, nextReview)
		}
		authorizer.reply <- answer{allowed: true}
		authorizer.reply <- answer{allowed: true}
		expect(t, first, answer{allowed: true})
		expect(t, second, answer{allowed: true})
	})
}

// Questions that differ in anything are asked on their own, however alike they look when joined.
func TestDistinctQuestionsNeverCollide(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		extra := func(key string, values ...string) map[string]certificatesv1.ExtraValue {
			return map[string]certificatesv1.ExtraValue{key: values}
		}
		askers := []csr.Requester{
			{}, {Username: "a"}, {UID: "a"}, {Groups: []string{"a"}}, {Username: "a", UID: "b"}, {Username: "a b"}, {Username: `a", UID:"b`},
			{Groups: []string{"a", "b"}}, {Groups: []string{"b", "a"}}, {Groups: []string{"a b"}}, {Groups: []string{`a", "b`}}, {Groups: []string{"a,b"}},
			{Extra: extra("a")}, {Extra: extra("a", "b")}, {Extra: extra("a", "b", "c")}, {Extra: extra("a", "b c")}, {Extra: extra("a b", "c")},
			{Username: "\n"}, {Username: `\n`}, {Username: "\x00"}, {Username: "\xff"}, {Username: "\xfe"}, {Username: "�"},
		}
		permissions := []authorizationv1.ResourceAttributes{{Verb: "create"}, {Resource: "create"}, {Verb: "create", Subresource: "a"}, {Verb: "create", Name: "a"}}
		var done sync.WaitGroup
		for _, who := range askers {
			for _, what := range permissions {
				done.Go(func() { _, _ = shared.Allowed(t.Context(), who, what) })
			}
		}
		synctest.Wait()
		if want := len(askers) * len(permissions); authorizer.count() != want {
			t.Errorf("%d reviews for %d different questions", authorizer.count(), want)
		}
		for range authorizer.count() {
			authorizer.reply <- answer{}
		}
		done.Wait()
	})
}

// Equal questions share, whatever the order in which their maps come.
func TestEqualQuestionsWithManyExtraKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, shared *Shared, authorizer *desk) {
		who := func() csr.Requester {
			extra := map[string]certificatesv1.ExtraValue{}
			for i := range 100 {
				extra[fmt.Sprint(i)] = certificatesv1.ExtraValue{"x"}
			}
			return csr.Requester{Username: "a", Extra: extra}
		}
		var done sync.WaitGroup
		for range 10 {
			done.Go(func() { _, _ = shared.Allowed(t.Context(), who(), authorizationv1.ResourceAttributes{}) })
			synctest.Wait()
		}
		authorizer.reply <- answer{}
		synctest.Wait()
		authorizer.reply <- answer{}
		done.Wait()
		if authorizer.count() != 2 {
			t.Errorf("%d reviews for ten equal questions", authorizer.count())
		}
	})
}

// Under the race detector: many callers, some of whom give up.
func TestManyCallers(t *testing.T) {
	t.Parallel()
	shared := &Shared{Authorizer: Func(func(_ context.Context, who csr.Requester, _ authorizationv1.ResourceAttributes) (bool, error) {
		return who.Username == "yes", nil
	})}
	var done sync.WaitGroup
	for i := range 200 {
		done.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			user := []string{"yes", "no"}[i%2]
			if i%5 == 0 {
				cancel()
			}
			allowed, err := shared.Allowed(ctx, csr.Requester{Username: user}, authorizationv1.ResourceAttributes{})
			if err == nil && allowed != (user == "yes") || err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %t, %v", user, allowed, err)
			}
		})
	}
	done.Wait()
}
