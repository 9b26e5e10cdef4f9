// Package authz asks the API server whether a requester may do something. It decides nothing itself.
package authz

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Authorizer reports whether a requester may perform an action. An error means "unknown, ask again", never "no".
type Authorizer interface {
	Allowed(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error)
}

// Func is a function that implements Authorizer.
type Func func(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error)

// Allowed calls f.
func (f Func) Allowed(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
	return f(ctx, who, what)
}

// SubjectAccess asks the API server with a SubjectAccessReview. It reads only status.allowed, as
// kube-controller-manager does (pkg/controller/certificates/approver/sarapprove.go, authorize).
type SubjectAccess struct{ Client client.Client }

// Allowed creates the SubjectAccessReview.
func (s SubjectAccess) Allowed(
	ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes,
) (bool, error) {
	review := who.Review(what)
	if err := s.Client.Create(ctx, review); err != nil {
		return false, fmt.Errorf("create SubjectAccessReview: %w", err)
	}
	return review.Status.Allowed, nil
}

const (
	// slotsPerQuestion is the number of identical reviews that are in progress at a time. Others wait, and share the next.
	slotsPerQuestion = 2
	// slow is the time after which a review gives its slot back.
	slow = time.Second
)

// Shared is an Authorizer in which identical reviews that are not sent yet share one. A review that is sent is never
// shared, so an answer is never older than its question. The zero value with an Authorizer is ready.
type Shared struct {
	Authorizer

	unsent singleflight.Group
	slots  sync.Map // of each question with a review in progress: a channel that holds a value for each
}

// Allowed implements Authorizer. ctx bounds only the wait of its caller, because others may share the review.
func (s *Shared) Allowed(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
	// %#v quotes every string and sorts every map: texts of different questions differ.
	question := fmt.Sprintf("%#v %#v", who, what)
	answered := s.unsent.DoChan(question, func() (any, error) { return s.send(context.WithoutCancel(ctx), question, who, what) })
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case answer := <-answered:
		allowed, _ := answer.Val.(bool)
		return allowed, answer.Err
	}
}

// send waits until fewer than slotsPerQuestion reviews of question are in progress, and sends one. A caller that comes
// after that shares the next one.
func (s *Shared) send(
	ctx context.Context, question string, who csr.Requester, what authorizationv1.ResourceAttributes,
) (allowed bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("review: panic: %v", cause)
		}
	}()
	known, _ := s.slots.LoadOrStore(question, make(chan struct{}, slotsPerQuestion))
	slots := known.(chan struct{})
	slots <- struct{}{}
	leave := sync.OnceFunc(func() {
		<-slots
		if len(slots) == 0 { // a review that enters at this moment does not count for later ones
			s.slots.CompareAndDelete(question, slots)
		}
	})
	defer leave()
	defer time.AfterFunc(slow, leave).Stop()
	s.unsent.Forget(question)
	ctx, cancel := context.WithTimeout(ctx, call.Timeout)
	defer cancel()
	return s.Authorizer.Allowed(ctx, who, what)
}
