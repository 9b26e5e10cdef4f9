package authz

import (
	"context"
	"fmt"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// reviewTimeout bounds one shared review, which outlives the callers that gave up on it.
const reviewTimeout = 30 * time.Second

// nextReview bounds how long identical questions wait for a review that was sent before they came: a review that hangs
// holds up those only that share it.
const nextReview = 500 * time.Millisecond

// Shared lets identical questions share an answer: those that arrive while one is being asked wait for the next one,
// and all of them share that. The next one is sent when the answer comes, or after half a second. So an answer is never older than the question, none is kept, and no caller's
// cancellation fails another.
type Shared struct {
	Authorizer Authorizer

	mu sync.Mutex
	// waiting holds, for each question that is being asked, the review that has not been sent yet, or nil.
	waiting map[string]*review
}

type review struct {
	done    chan struct{}
	allowed bool
	err     error

	ctx     context.Context // of the call, which is everybody's who waits for it
	cancel  context.CancelFunc
	callers int // that still wait
}

// Allowed returns the shared answer, or the cause of ctx's end if that comes first.
func (s *Shared) Allowed(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
	// %#v quotes every string and sorts every map, so no two questions look the same.
	question := fmt.Sprintf("%#v %#v", who, what)
	answer := s.join(ctx, question, who, what)
	select {
	case <-answer.done:
		return answer.allowed, answer.err
	case <-ctx.Done():
		s.leave(answer)
		return false, context.Cause(ctx)
	}
}

// join returns the review of question that has not been sent yet, and makes one where there is none. The first one's
// goroutine goes on to ask for all that come after it.
func (s *Shared) join(ctx context.Context, question string, who csr.Requester, what authorizationv1.ResourceAttributes) *review {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[string]*review{}
	}
	next, busy := s.waiting[question]
	if next == nil || next.callers == 0 { // none, or one that everybody has left
		next = &review{done: make(chan struct{})}
		next.ctx, next.cancel = context.WithCancel(context.WithoutCancel(ctx))
		s.waiting[question] = next
	}
	next.callers++
	if !busy {
		go s.ask(question, who, what)
	}
	return next
}

// leave ends the call once nobody waits for it any more.
func (s *Shared) leave(left *review) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left.callers--; left.callers == 0 {
		left.cancel()
	}
}

func (s *Shared) ask(question string, who csr.Requester, what authorizationv1.ResourceAttributes) {
	for next := s.take(question); next != nil; next = s.take(question) {
		go func() {
			next.allowed, next.err = s.askOnce(next.ctx, who, what)
			next.cancel()
			close(next.done)
		}()
		timer := time.NewTimer(nextReview)
		select {
		case <-next.done:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// take marks the waiting review of question as sent, or forgets the question when none waits.
func (s *Shared) take(question string) *review {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.waiting[question]
	if next == nil {
		delete(s.waiting, question)
		return nil
	}
	s.waiting[question] = nil
	return next
}

// askOnce asks, and turns a panic of the Authorizer, which nobody else could recover in this goroutine, into an error.
func (s *Shared) askOnce(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (allowed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			allowed, err = false, fmt.Errorf("the authorizer panicked: %v", cause)
		}
	}()
	return s.Authorizer.Allowed(ctx, who, what)
}
