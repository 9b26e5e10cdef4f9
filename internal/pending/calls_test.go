package pending

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const callTimeout = 30 * time.Second

// service is a slow service. The test gives its answers, one by one.
type service struct {
	mu    sync.Mutex
	calls []string // requester and question of each call, in order
	reply chan answer
}

type answer struct {
	value string
	err   error
}

func (s *service) made() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// asking holds Calls to a service, and the requests for which Answered was called.
type asking struct {
	*Calls[string]
	service *service
	stop    func()

	mu       sync.Mutex
	answered []string
}

// inBubble runs test with Calls, and checks that no entry is left at the end.
func inBubble(t *testing.T, limit, perRequester int, test func(t *testing.T, a *asking)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &asking{service: &service{reply: make(chan answer)}}
		a.Calls = &Calls[string]{Limit: limit, PerRequester: perRequester, Timeout: callTimeout, Clock: clock.RealClock{}}
		a.Answered = func(request string) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.answered = append(a.answered, request)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := a.Start(ctx); err != nil {
				t.Error(err)
			}
		})
		a.stop = func() { cancel(); running.Wait() }
		defer a.stop()
		synctest.Wait()
		test(t, a)
		synctest.Wait()
		a.Calls.mu.Lock()
		defer a.Calls.mu.Unlock()
		if left := len(a.unsent) + len(a.fresh) + len(a.requesters) + len(a.queues) + len(a.underWay) + a.count; left > 0 {
			t.Errorf("%d entries are left of calls that nobody needs", left)
		}
	})
}

// ask asks a question of requester for a request, and returns the answer, "waits", or the error.
func (a *asking) ask(request, requester, text string) string {
	value, err := a.Answer(Question[string]{
		Request: request, UID: types.UID("uid-of-" + request), Requester: DigestOf(requester), Text: requester + " " + text,
		Ask: func(ctx context.Context) (string, error) {
			a.service.mu.Lock()
			a.service.calls = append(a.service.calls, requester+" "+text)
			a.service.mu.Unlock()
			select {
			case given := <-a.service.reply:
				return given.value, given.err
			case <-ctx.Done():
				return "", ctx.Err()
			}
		},
	})
	synctest.Wait()
	waiting := (*Waiting)(nil)
	switch {
	case errors.As(err, &waiting):
		return "waits"
	case err != nil:
		return err.Error()
	}
	return value
}

// forget forgets requests.
func (a *asking) forget(requests ...string) {
	for _, request := range requests {
		a.Forget(types.UID("uid-of-" + request))
	}
	synctest.Wait()
}

// give answers the oldest call.
func (a *asking) give(value string, err error) {
	a.service.reply <- answer{value, err}
	synctest.Wait()
}

// told returns and clears the requests for which Answered was called.
func (a *asking) told() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.Sort(a.answered)
	told := strings.Join(a.answered, " ")
	a.answered = nil
	return told
}

func (a *asking) expect(t *testing.T, want, got string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestARequestIsToldOfItsAnswer(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		a.expect(t, "waits", a.ask("csr-1", "alice", "?"))
		a.expect(t, "waits", a.ask("csr-1", "alice", "?"))
		a.expect(t, "", a.told())
		a.give("yes", nil)
		a.expect(t, "csr-1", a.told())
		for range 2 { // a decision may need several answers
			a.expect(t, "yes", a.ask("csr-1", "alice", "?"))
		}
		if made := a.service.made(); len(made) != 1 {
			t.Errorf("%q for one question", made)
		}
		a.forget("csr-1")
	})
}

func TestIdenticalQuestionsShareTheNextCall(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		a.ask("first", "alice", "?")
		var late []string
		for i := range 20 {
			late = append(late, fmt.Sprintf("late-%02d", i))
			a.expect(t, "waits", a.ask(late[i], "alice", "?"))
		}
		if made := a.service.made(); len(made) != 1 {
			t.Fatalf("%d calls while the first is under way", len(made))
		}
		a.give("no", nil)
		a.expect(t, "first", a.told())
		a.expect(t, "no", a.ask("first", "alice", "?"))
		a.give("yes", nil) // newer than every late question
		a.expect(t, strings.Join(late, " "), a.told())
		for _, request := range late {
			a.expect(t, "yes", a.ask(request, "alice", "?"))
		}
		if made := a.service.made(); len(made) != 2 {
			t.Errorf("%d calls for 21 questions", len(made))
		}
		a.forget(append(late, "first")...)
	})
}

func TestNoAnswerOutlivesItsRequests(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		for _, given := range []answer{{value: "yes"}, {value: "no"}, {err: errors.New("down")}, {value: "yes"}} {
			a.expect(t, "waits", a.ask("csr-1", "alice", "?"))
			a.give(given.value, given.err)
			want := given.value
			if given.err != nil {
				want = given.err.Error()
			}
			a.expect(t, want, a.ask("csr-1", "alice", "?"))
			a.forget("csr-1")
		}
		if len(a.asked) > 0 {
			t.Errorf("%d requests are remembered", len(a.asked))
		}
	})
}

// TestAnOldAnswerIsAskedForAgain checks that an answer that its request did not read in time is requested again.
func TestAnOldAnswerIsAskedForAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		a.MaxAge = time.Minute
		a.ask("csr-1", "alice", "?")
		a.give("yes", nil)
		time.Sleep(time.Minute)
		a.expect(t, "yes", a.ask("csr-1", "alice", "?"))
		time.Sleep(time.Nanosecond)
		a.expect(t, "waits", a.ask("csr-1", "alice", "?"))
		a.give("no", nil)
		a.expect(t, "no", a.ask("csr-1", "alice", "?"))
		a.forget("csr-1")
	})
}

// TestAnAnswerIsForOneRequest checks that a new request with the name of an old request does not get its answer.
func TestAnAnswerIsForOneRequest(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		a.ask("csr-1", "alice", "?")
		a.give("yes", nil)
		_, err := a.Answer(Question[string]{Request: "csr-1", UID: "another", Requester: DigestOf("alice"), Text: "alice ?",
			Ask: func(context.Context) (string, error) { return "no", nil }})
		if err == nil {
			t.Error("a request gets another one's answer")
		}
		synctest.Wait()
		a.Forget("another")
		a.forget("csr-1")
	})
}

func TestErrorsAreSharedButNotKept(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		for _, request := range []string{"first", "second", "third"} {
			a.ask(request, "alice", "?")
		}
		a.give("yes", nil)
		a.expect(t, "yes", a.ask("first", "alice", "?"))
		a.give("", errors.New("down"))
		a.expect(t, "down", a.ask("second", "alice", "?"))
		a.expect(t, "down", a.ask("third", "alice", "?"))
		a.forget("first", "second", "third")
		a.expect(t, "waits", a.ask("second", "alice", "?"))
		a.give("yes", nil)
		a.expect(t, "yes", a.ask("second", "alice", "?"))
		a.forget("second")
	})
}

func TestForgettingARequestFailsNoOther(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		for _, request := range []string{"first", "waiting", "patient"} {
			a.ask(request, "alice", "?")
		}
		a.forget("first", "waiting")
		synctest.Wait() // the call that only the first request needed was canceled
		a.give("yes", nil)
		a.expect(t, "patient", a.told())
		a.expect(t, "yes", a.ask("patient", "alice", "?"))
		a.forget("patient")
	})
}

func TestACallThatNobodyNeedsIsNotMade(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		a.ask("busy", "alice", "?")
		a.ask("leaves", "alice", "?")
		a.forget("leaves")
		a.ask("late", "alice", "?")
		a.give("yes", nil)
		a.expect(t, "yes", a.ask("busy", "alice", "?"))
		a.give("no", nil)
		a.expect(t, "no", a.ask("late", "alice", "?"))
		a.forget("busy", "late")
		if made := a.service.made(); len(made) != 2 {
			t.Errorf("calls %q", made)
		}
	})
}

func TestAPanicIsAnError(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		question := Question[string]{Request: "csr-1", UID: "1", Ask: func(context.Context) (string, error) { panic("no") }}
		if _, err := a.Answer(question); err == nil {
			t.Error("there is an answer at once")
		}
		synctest.Wait()
		if value, err := a.Answer(question); value != "" || err == nil || err.Error() != "panic: no" {
			t.Errorf("%q, %v", value, err)
		}
	})
}

func TestACallThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		a.ask("first", "alice", "?")
		a.ask("second", "alice", "?")
		time.Sleep(callTimeout)
		synctest.Wait()
		a.expect(t, "first", a.told())
		a.expect(t, context.DeadlineExceeded.Error(), a.ask("first", "alice", "?"))
		time.Sleep(nextCall)
		synctest.Wait()
		a.expect(t, "second", a.told())
		a.forget("first", "second")
	})
}

// TestACallThatHangsHoldsUpNoOther checks that a hanging call delays only the requests that share it: after a while
// an identical call is sent.
func TestACallThatHangsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	inBubble(t, 10, 2, func(t *testing.T, a *asking) {
		a.ask("first", "alice", "?")
		a.ask("second", "alice", "?")
		if made := a.service.made(); len(made) != 1 {
			t.Errorf("%d calls at once", len(made))
		}
		time.Sleep(nextCall)
		synctest.Wait()
		if made := a.service.made(); len(made) != 2 {
			t.Fatalf("%d calls after %s", len(made), nextCall)
		}
		a.ask("third", "alice", "?")
		time.Sleep(nextCall)
		synctest.Wait()
		if made := a.service.made(); len(made) != 2 {
			t.Errorf("%d calls for one requester at a time", len(made))
		}
		a.give("yes", nil)
		a.give("yes", nil)
		a.give("yes", nil)
		a.expect(t, "first second third", a.told())
		a.forget("first", "second", "third")
	})
}

// TestRequestersTakeTurns checks that requesters take turns, and that the hanging calls of one requester do not block
// others.
func TestRequestersTakeTurns(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, 2, func(t *testing.T, a *asking) {
		var all []string
		ask := func(requester string, count int) {
			for i := range count {
				request := fmt.Sprintf("%s-%d", requester, i)
				all = append(all, request)
				a.ask(request, requester, request)
			}
		}
		ask("hostile", 100)
		ask("alice", 3)
		ask("bob", 1)
		want := []string{"hostile hostile-0", "hostile hostile-1", "alice alice-0"}
		if made := a.service.made(); !slices.Equal(made, want) {
			t.Fatalf("at first %q, want %q", made, want)
		}
		for range 4 {
			a.give("yes", nil)
		}
		made := a.service.made()
		for _, call := range []string{"bob bob-0", "alice alice-1"} {
			if at := slices.Index(made, call); at < 0 || at > 6 {
				t.Errorf("%q is number %d of %q", call, at, made)
			}
		}
		a.forget(all...)
	})
}

func TestLimits(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, 2, func(t *testing.T, a *asking) {
		var all []string
		for i := range 20 {
			request := fmt.Sprint("csr-", i)
			all = append(all, request)
			a.ask(request, fmt.Sprint("requester-", i/4), request)
		}
		if made := a.service.made(); len(made) != 5 {
			t.Errorf("%d calls are under way", len(made))
		}
		a.forget(all...)
	})
}

// TestCallsRunBetweenStartAndStop checks that no call is made before Start and after its end.
func TestCallsRunBetweenStartAndStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made := 0
		c := &Calls[string]{Limit: 1, PerRequester: 1, Timeout: callTimeout, Clock: clock.RealClock{}, Answered: func(string) {}}
		ask := func(uid types.UID) {
			_, _ = c.Answer(Question[string]{UID: uid, Text: string(uid), Ask: func(ctx context.Context) (string, error) {
				made++
				<-ctx.Done()
				return "", ctx.Err()
			}})
			synctest.Wait()
		}
		ask("before")
		if made != 0 {
			t.Error("a call before the start")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Start(ctx) }()
		synctest.Wait()
		if made != 1 {
			t.Errorf("%d calls after the start", made)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ask("after")
		if made != 1 {
			t.Errorf("%d calls after the end", made)
		}
	})
}

// TestManyRequests runs many requests under the race detector. Some of them are dropped.
func TestManyRequests(t *testing.T) {
	t.Parallel()
	told := make(chan string, 1000)
	c := &Calls[string]{
		Limit: 8, PerRequester: 2, Timeout: time.Minute, Clock: clock.RealClock{}, Answered: func(request string) { told <- request },
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = c.Start(ctx) })
	defer cancel()
	question := func(i int) Question[string] {
		user := []string{"alice", "bob", "carol"}[i%3]
		return Question[string]{
			Request: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), Requester: DigestOf(user), Text: fmt.Sprint(user, i%10),
			Ask: func(context.Context) (string, error) { return user, nil },
		}
	}
	var asking sync.WaitGroup
	for i := range 300 {
		asking.Go(func() {
			_, _ = c.Answer(question(i))
			if i%5 == 0 {
				c.Forget(types.UID(fmt.Sprint(i)))
			}
		})
	}
	asking.Wait()
	for range 240 {
		var i int
		for {
			if _, err := fmt.Sscan(<-told, &i); err != nil || i%5 != 0 {
				break
			}
		}
		if got, err := c.Answer(question(i)); err != nil || got != []string{"alice", "bob", "carol"}[i%3] {
			t.Errorf("%d: %q, %v", i, got, err)
		}
	}
}
