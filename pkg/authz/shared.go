package authz

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// reviewTimeout bounds one review, and the time that a review waits for its place.
	reviewTimeout = 45 * time.Second
	// placesPerQuestion is the number of identical reviews that are in progress at a time. Others wait, and share the next.
	// A review that takes longer than slow gives its place back, so one that hangs does not hold it.
	placesPerQuestion = 2
	slow              = time.Second
	// groups is the number of groups of callers with the same question. Callers share a review only within their group,
	// so a review that hangs holds up only a part of them.
	groups = 4
)

// Shared is an Authorizer in which identical reviews that are not sent yet share one. A review that is sent is never
// shared, so an answer is never older than its question. The zero value with an Authorizer is ready.
type Shared struct {
	Authorizer

	unsent singleflight.Group
	asked  atomic.Uint64 // questions
	places sync.Map      // of each question with a review in progress: a channel that holds a value for each
}

// Allowed implements Authorizer. ctx bounds only the wait of its caller, because others may share the review.
func (s *Shared) Allowed(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
	// %#v quotes every string and sorts every map: texts of different questions differ.
	question := fmt.Sprintf("%#v %#v", who, what)
	group := fmt.Sprint(s.asked.Add(1)%groups, question)
	detached := context.WithoutCancel(ctx)
	answer := s.unsent.DoChan(group, func() (allowed any, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("review: panic: %v", cause)
			}
		}()
		leave, err := s.enter(detached, question)
		if err != nil {
			return false, err
		}
		defer leave()
		defer time.AfterFunc(slow, leave).Stop()
		s.unsent.Forget(group)
		ctx, cancel := context.WithTimeout(detached, reviewTimeout)
		defer cancel()
		return s.Authorizer.Allowed(ctx, who, what)
	})
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case result := <-answer:
		allowed, _ := result.Val.(bool)
		return allowed, result.Err
	}
}

// enter waits until a review of question may be sent. The caller calls leave after it, once or more.
func (s *Shared) enter(ctx context.Context, question string) (leave func(), err error) {
	known, _ := s.places.LoadOrStore(question, make(chan struct{}, placesPerQuestion))
	places := known.(chan struct{})
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for identical reviews: %w", ctx.Err())
	case places <- struct{}{}:
	}
	return sync.OnceFunc(func() {
		<-places
		if len(places) == 0 { // a review that enters at this moment does not count for later ones
			s.places.CompareAndDelete(question, places)
		}
	}), nil
}
