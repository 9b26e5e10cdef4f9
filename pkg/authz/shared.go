package authz

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// reviewTimeout bounds one review.
	reviewTimeout = 45 * time.Second
	// placesPerQuestion is the number of identical reviews that are in progress at a time. Others wait, and share the next.
	placesPerQuestion = 2
	// slow is the time after which a review gives its place back.
	slow = time.Second
	// askAgain is the time after which callers without an answer ask again. Most authorizers answer earlier, so a review that
	// hangs costs its callers five seconds, and a slow authorizer gets few reviews more.
	askAgain = 5 * time.Second
)

// Shared is an Authorizer in which identical reviews that are not sent yet share one. A review that is sent is never
// shared, so an answer is never older than its question. The zero value with an Authorizer is ready.
type Shared struct {
	Authorizer

	unsent singleflight.Group
	places sync.Map // of each question with a review in progress: a channel that holds a value for each
}

// Allowed implements Authorizer. While there is no answer, it asks again after five seconds, and then after twice as
// long each time, and returns the first answer. ctx bounds only the wait of its caller, because others may share the review.
func (s *Shared) Allowed(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
	// %#v quotes every string and sorts every map: texts of different questions differ.
	question := fmt.Sprintf("%#v %#v", who, what)
	detached := context.WithoutCancel(ctx)
	send := func() (any, error) { return s.send(detached, question, who, what) }
	done, answers := make(chan struct{}), make(chan singleflight.Result)
	defer close(done)
	for pause := askAgain; ; pause *= 2 {
		go func() {
			select {
			case answer := <-s.unsent.DoChan(question, send):
				select {
				case answers <- answer:
				case <-done:
				}
			case <-done:
			}
		}()
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case answer := <-answers:
			allowed, _ := answer.Val.(bool)
			return allowed, answer.Err
		case <-time.After(pause):
		}
	}
}

// send waits until fewer than placesPerQuestion reviews of question are in progress, and sends one. A caller that comes
// after that shares the next one.
func (s *Shared) send(
	ctx context.Context, question string, who csr.Requester, what authorizationv1.ResourceAttributes,
) (allowed bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("review: panic: %v", cause)
		}
	}()
	known, _ := s.places.LoadOrStore(question, make(chan struct{}, placesPerQuestion))
	places := known.(chan struct{})
	places <- struct{}{}
	leave := sync.OnceFunc(func() {
		<-places
		if len(places) == 0 { // a review that enters at this moment does not count for later ones
			s.places.CompareAndDelete(question, places)
		}
	})
	defer leave()
	defer time.AfterFunc(slow, leave).Stop()
	s.unsent.Forget(question)
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	return s.Authorizer.Allowed(ctx, who, what)
}
