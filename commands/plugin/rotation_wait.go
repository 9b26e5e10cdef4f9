package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// follower waits for the outcome of an operation, or of the phase that is under way.
type follower struct {
	*rotation
	operation v1alpha1.Operation         // empty: until no certificate of the retiring CA is valid
	before    *v1alpha1.SigningAuthority // as it was when the operation was requested
	start     time.Time
	printed   string // last
	// answered is true from the moment that the manager has accepted the operation.
	answered bool
}

// attach waits for what is under way at obj.
func (r *rotation) attach(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	status, f := &obj.Status, &follower{rotation: r, before: obj, answered: true}
	pending := requested(obj)
	switch {
	case pending != "" && !status.Answered():
		f.operation, f.answered = pending, false
	case status.Phase == v1alpha1.New, status.Phase == v1alpha1.Preparing:
		f.operation = v1alpha1.OperationStart
	case status.Phase == v1alpha1.Completing:
		f.operation = v1alpha1.OperationComplete
	case status.Phase == v1alpha1.Prepared && status.Intent == "SwapBack": // a rollback that was accepted
		f.operation = v1alpha1.OperationRollback
	case status.Phase != v1alpha1.Prepared:
		return r.print("%s: nothing is under way: %s", obj.Name, summary(status))
	}
	return f.follow(ctx)
}

// follow waits until the operation is done or refused.
func (f *follower) follow(ctx context.Context) error {
	verb := rotationVerbs[slices.IndexFunc(rotationVerbs, func(verb rotationVerb) bool {
		return verb.operation == f.operation && verb.goal != ""
	})]
	f.start = f.now()
	if err := f.remark("%s: waiting at most %s (--timeout) until %s", f.before.Name, f.timeout, verb.goal); err != nil {
		return err
	}
	err := wait.PollUntilContextCancel(ctx, time.Second, true, f.observe)
	ended := "stopped waiting"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		ended = fmt.Sprintf("not done within %s", f.timeout)
	case !errors.Is(err, context.Canceled):
		return err
	}
	return fmt.Errorf("%s: %s; the manager continues, and %s waits again",
		ended, f.printed, f.commandFor("wait", f.before))
}

// observe reports whether the operation is done, and prints progress.
func (f *follower) observe(ctx context.Context) (bool, error) {
	objs, err := f.listAuthorities(ctx, f.before.Name)
	switch {
	case apierrors.IsNotFound(err), err == nil && objs[0].UID != f.before.UID:
		return false, fmt.Errorf("SigningAuthority %s was deleted", f.before.Name)
	case err != nil:
		return false, f.progress(fmt.Sprintf("the API server does not answer: %v", err))
	}
	obj := &objs[0]
	if !f.answered {
		if f.answered, err = f.answer(obj); !f.answered || err != nil {
			return false, err
		}
	}
	if err := f.undone(&obj.Status); err != nil {
		return false, err
	}
	if f.done(&obj.Status) {
		return true, f.print("%s: done: %s", obj.Name, summary(&obj.Status))
	}
	return false, f.progress(summary(&obj.Status))
}

// answer reports whether the manager has accepted the operation. If it was refused, the error says why.
func (f *follower) answer(obj *v1alpha1.SigningAuthority) (bool, error) {
	last, before := obj.Status.LastOperation, f.before.Status.LastOperation
	switch {
	case requested(obj) != "", last == nil, last.Annotated, before != nil && before.Time.Equal(&last.Time):
		return false, f.progress(fmt.Sprintf("the manager has not picked up %s yet", f.operation.Command()))
	case last.Name != f.operation:
		return false, fmt.Errorf("%s was answered, and then %s was requested: run %s",
			f.operation.Command(), last.Name.Command(), f.commandFor("status", obj))
	case last.Result != v1alpha1.Accepted:
		return false, errors.New(oneLine(last.Message))
	}
	return true, nil
}

// progress prints text unless it was printed last.
func (f *follower) progress(text string) error {
	if text = oneLine(text); text == f.printed {
		return nil
	}
	f.printed = text
	return f.remark("%5s  %s", f.now().Sub(f.start).Round(time.Second), text)
}

// undone returns an error if the accepted operation was stopped or undone.
func (f *follower) undone(now *v1alpha1.SigningAuthorityStatus) error {
	last := now.LastOperation
	switch {
	case f.operation == v1alpha1.OperationComplete && now.Phase == v1alpha1.Prepared && last != nil && last.Result == v1alpha1.Refused:
		return errors.New(oneLine(last.Message))
	case f.operation == v1alpha1.OperationStart && now.Phase == v1alpha1.Completed && v1alpha1.SameCA(f.before.Status.Signing, now.Signing):
		return errors.New("the new CA does not sign: the rotation was rolled back meanwhile")
	}
	return nil
}

// done reports whether what the accepted operation leads to is reached. Without an operation, that is when no certificate
// of the retiring CA prevents a completion.
func (f *follower) done(now *v1alpha1.SigningAuthorityStatus) bool {
	before := &f.before.Status
	switch f.operation {
	case v1alpha1.OperationStart:
		return now.Phase != v1alpha1.Preparing && now.Phase != v1alpha1.New
	case v1alpha1.OperationComplete:
		return before.Retiring == nil || v1alpha1.SameCA(before.Retiring, now.LastRetired)
	case v1alpha1.OperationRollback:
		return rolledBack(before, now)
	case "":
		return now.Phase != v1alpha1.Prepared || len(now.Outstanding) == 0 ||
			now.Retiring != nil && now.Retiring.OutstandingAcceptedAt != nil
	default: // it is done when it is accepted
		return true
	}
}

// rolledBack reports whether the CA signs to which a rollback from before returns.
func rolledBack(before, now *v1alpha1.SigningAuthorityStatus) bool {
	goal := before.Signing
	if before.Phase == v1alpha1.Prepared {
		goal = before.Retiring
	}
	return v1alpha1.SameCA(goal, now.Signing) && now.Phase != v1alpha1.Preparing
}

func phase(status *v1alpha1.SigningAuthorityStatus) string {
	return cmp.Or(string(status.Phase), "New")
}

// summary returns status in one line.
func summary(status *v1alpha1.SigningAuthorityStatus) string {
	text := fmt.Sprintf("%s, generation %d", phase(status), status.Generation)
	switch {
	case len(status.WaitingFor) > 0:
		text += ", waiting: " + strings.Join(status.WaitingFor, "; ")
	case status.Intent != "":
		text += ", step " + status.Intent
	}
	return text
}
