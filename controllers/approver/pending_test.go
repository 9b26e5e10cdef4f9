package approver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// reviewedBeside runs p's reviews beside its workers. It returns a function that returns the requests with an answer.
func (p *parts) reviewedBeside(t *testing.T) (answered func() string) {
	t.Helper()
	var mu sync.Mutex
	var told []string
	p.reconciler.reviews = map[authorizationv1.ResourceAttributes]*pending.Calls[bool]{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, recogniser := range NodeClient().Recognisers {
		reviews := &pending.Calls[bool]{
			Limit: 2, PerRequester: 1, Timeout: reviewTimeout, Clock: clock.RealClock{},
			Answered: func(request string) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, request)
			},
		}
		p.reconciler.reviews[recogniser.Permission] = reviews
		running.Go(func() { _ = reviews.Start(ctx) })
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		all := strings.Join(told, " ")
		told = nil
		return all
	}
}

// TestNoWorkerWaitsForAReview delays a review. The request is set aside without an Event until there is an answer, and
// the answer is used once.
func TestNoWorkerWaitsForAReview(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		obj    *request
		grants []string
		fault  error
		rounds int // number of reviews
		want   string
	}{
		"allowed":                {obj: object(t), grants: []string{"nodeclient"}, rounds: 1, want: "Approved"},
		"refused":                {obj: object(t), rounds: 1, want: "Waits NotAuthorized"},
		"a renewal":              {obj: object(t, user("system:node:a")), grants: []string{"selfnodeclient"}, rounds: 1, want: "Approved"},
		"a node that bootstraps": {obj: object(t, user("system:node:a")), grants: []string{"nodeclient"}, rounds: 2, want: "Approved"},
		"the review fails":       {obj: object(t), grants: []string{"nodeclient"}, fault: errors.New("down"), rounds: 1, want: "down"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newParts(t, test.obj)
				p.grants, p.fault = test.grants, test.fault
				slow := make(chan struct{})
				p.reconciler.Authorizer = authz.Func(func(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
					<-slow
					return p.review(ctx, who, what)
				})
				p.reconciler.queues(test.obj)
				answered := p.reviewedBeside(t)
				for range test.rounds {
					for range 2 { // a change wakes it without an effect
						if got := p.outcome(t); got != "Waits " || answered() != "" {
							t.Fatalf("before the answer: %s", got)
						}
					}
					slow <- struct{}{}
					if told := answered(); told != "csr-1" {
						t.Fatalf("%q are told of the answer", told)
					}
				}
				result, err := p.reconcile(t)
				if test.fault != nil {
					if !errors.Is(err, test.fault) || result.RequeueAfter > 0 || len(p.written) > 0 {
						t.Errorf("%+v, error %v, %d writes", result, err, len(p.written))
					}
				} else if told := strings.Join(p.events(), " "); err != nil || (len(p.written) == 1) != (test.want == "Approved") ||
					(told != "") != strings.Contains(test.want, "NotAuthorized") {
					t.Errorf("%d writes, Events %q, error %v, want %s", len(p.written), told, err, test.want)
				}
				if len(p.reviews) != test.rounds {
					t.Errorf("%d reviews", len(p.reviews))
				}
				p.written = nil
				if got := p.outcome(t); got != "Waits " { // reviewed again
					t.Errorf("after the decision: %s", got)
				}
				p.reconciler.queued().Delete(event.DeleteEvent{Object: p.served})
				close(slow)
			})
		})
	}
}

// TestALookupThatTakesLongIsTold checks that a lookup is reported once it has taken a second. A dry run counts it only
// after it has ended.
func TestALookupThatTakesLongIsTold(t *testing.T) {
	t.Parallel()
	for _, dryRun := range []bool{false, true} {
		p := newParts(t, object(t))
		var err error = &inventory.Unavailable{Source: "webhook", Cause: &pending.Waiting{Since: now}}
		signer := newSigner()
		p.served.Spec.SignerName, p.reconciler.DryRun = signer, dryRun
		p.reconciler.Rules = []Rule{{SignerName: signer, Judge: func(context.Context, *csr.Request) (Decision, error) {
			if err != nil {
				return Decision{}, fmt.Errorf("look up: %w", err)
			}
			return approved(NodeClient().Recognisers[1]), nil
		}}}
		message := `source webhook of approval.inventory has not answered about node "a" yet; the request is judged when it answers`
		if dryRun {
			message = "WouldWait InventoryPending: " + message
		} else {
			message = "InventoryPending " + message
		}
		for at, want := range []string{"", "Warning " + message, ""} { // seconds
			p.clock.SetTime(now.Add(time.Duration(at) * time.Second))
			result, err := p.reconcile(t)
			if told := strings.Join(p.events(), " "); err != nil || told != want || result.RequeueAfter == 0 || len(p.written) > 0 {
				t.Errorf("dry run %t, after %d s: %q, want %q; %+v, error %v", dryRun, at, told, want, result, err)
			}
		}
		if dryRun {
			with("Approved")(p.served)
			if _, err := p.reconcile(t); err != nil || len(counted(t, signer)) > 0 {
				t.Errorf("compared before the answer: %v, error %v", counted(t, signer), err)
			}
		}
		err = nil
		if _, err := p.reconcile(t); err != nil || !dryRun && len(p.written) != 1 || dryRun && counted(t, signer)["Approve AutoApproved agreed"] != 1 {
			t.Errorf("dry run %t, with the answer: %d writes, counted %v, error %v", dryRun, len(p.written), counted(t, signer), err)
		}
	}
}

// TestWaitingIsNoFault checks that a missing answer is not a fault, and every other error is.
func TestWaitingIsNoFault(t *testing.T) {
	t.Parallel()
	waiting := &inventory.Unavailable{Source: "webhook", Cause: &pending.Waiting{}}
	for _, step := range []string{"look up", "compare"} {
		req, facts := serving()
		fail := func(here string, err error) func(*servingFacts) error {
			return func(known *servingFacts) error {
				if known.Entry == nil {
					*known = *facts
				}
				if here != step {
					return nil
				}
				return known.fault(err)
			}
		}
		if decision, err := judgeServing(req, fail("look up", waiting), fail("compare", waiting)); !errors.Is(err, waiting) || decision != (Decision{}) {
			t.Errorf("%s waits: %+v, error %v", step, decision, err)
		}
		down := errors.New("down")
		if decision, err := judgeServing(req, fail("look up", down), fail("compare", down)); err != nil || decision.Reason != "InventoryUnavailable" {
			t.Errorf("%s fails: %+v, error %v", step, decision, err)
		}
	}
}

// TestAnsweredGoFirst checks that a request with an answer is judged before requests that still wait in the queue.
func TestAnsweredGoFirst(t *testing.T) {
	t.Parallel()
	r, q := holding(t), newTestQueue(t)
	order := r.NewQueue()
	for _, name := range []string{"a", "b", "c"} {
		r.queues(of(t, name, "10.0.0.1"))
	}
	order.Push(queueKey("a"))
	order.Push(queueKey("b"))
	r.enqueueAnswered(q, map[string]bool{"c": true})
	if got := woken(q); got != "c" {
		t.Errorf("%q are enqueued", got)
	}
	order.Push(queueKey("c"))
	if got := order.Pop().Name; got != "c" {
		t.Errorf("%s goes first", got)
	}
}

// TestReviewsOfDistinctRequestersAreDistinct checks that two requesters that an authorizer could distinguish never
// share a review. Their joined fields may look alike.
func TestReviewsOfDistinctRequestersAreDistinct(t *testing.T) {
	t.Parallel()
	extra := func(key string, values ...string) map[string]certificatesv1.ExtraValue {
		return map[string]certificatesv1.ExtraValue{key: values}
	}
	seen := map[string]csr.Requester{}
	for _, who := range []csr.Requester{
		{}, {Username: "a"}, {UID: "a"}, {Groups: []string{"a"}}, {Username: "a", UID: "b"}, {Username: "a b"}, {Username: `a", UID:"b`},
		{Groups: []string{"a", "b"}}, {Groups: []string{"b", "a"}}, {Groups: []string{"a b"}}, {Groups: []string{`a", "b`}}, {Groups: []string{"a,b"}},
		{Extra: extra("a")}, {Extra: extra("a", "b")}, {Extra: extra("a", "b", "c")}, {Extra: extra("a", "b c")}, {Extra: extra("a b", "c")},
		{Username: "\n"}, {Username: `\n`}, {Username: "\x00"}, {Username: "\xff"}, {Username: "\xfe"}, {Username: "�"},
	} {
		text := reviewText(who)
		if other, found := seen[text]; found {
			t.Errorf("%+v shares the review of %+v", who, other)
		}
		seen[text] = who
	}
}

// TestReviewsOfEqualRequestersAreEqual checks that equal requesters share a review, whatever the order of their maps.
func TestReviewsOfEqualRequestersAreEqual(t *testing.T) {
	t.Parallel()
	who := func() csr.Requester {
		extra := map[string]certificatesv1.ExtraValue{}
		for i := range 100 {
			extra[fmt.Sprint(i)] = certificatesv1.ExtraValue{"x"}
		}
		return csr.Requester{Username: "a", Extra: extra}
	}
	first := reviewText(who())
	for range 10 {
		if reviewText(who()) != first {
			t.Fatal("two equal requesters do not share a review")
		}
	}
}
