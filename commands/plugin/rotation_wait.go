package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

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

// newFollower returns a follower of operation, which is requested, or was requested, at obj.
func (r *rotation) newFollower(obj *v1alpha1.SigningAuthority, operation v1alpha1.Operation) *follower {
	return &follower{rotation: r, operation: operation, before: obj.DeepCopy(), start: r.now()}
}

// attach waits for what is under way at obj.
func (r *rotation) attach(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	status := &obj.Status
	if pending := requested(obj); pending != "" && !status.Answered() {
		return r.newFollower(obj, pending).follow(ctx)
	}
	f := r.newFollower(obj, "")
	f.answered = true
	switch {
	case status.Phase == v1alpha1.New, status.Phase == v1alpha1.Preparing:
		f.operation = v1alpha1.OperationStart
	case status.Phase == v1alpha1.Completing:
		f.operation = v1alpha1.OperationComplete
	case status.Phase == v1alpha1.Prepared && status.Intent == swapBack:
		f.operation = v1alpha1.OperationRollback
	case status.Phase == v1alpha1.Prepared:
	default:
		return r.print("%s: nothing is under way: %s", obj.Name, summary(status))
	}
	return f.follow(ctx)
}

// swapBack is the intent of a rollback that was accepted.
const swapBack = "SwapBack"

// follow waits until the operation is done or refused.
func (f *follower) follow(ctx context.Context) error {
	if err := f.remark("%s: waiting at most %s (--timeout) until %s", f.before.Name, f.timeout, f.goal()); err != nil {
		return err
	}
	err := wait.PollUntilContextCancel(ctx, f.interval, true, f.observe)
	again := "; the manager continues, and " + f.commandFor("wait", f.before) + " waits again"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("not done within %s: %s%s", f.timeout, f.printed, again)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped waiting: %s%s", f.printed, again)
	}
	return err
}

// goal says what f waits for.
func (f *follower) goal() string {
	status := &f.before.Status
	switch f.operation {
	case v1alpha1.OperationStart:
		return "the new CA is trusted and signs"
	case v1alpha1.OperationComplete:
		return "every API server refuses the old CA and its key is destroyed"
	case v1alpha1.OperationRollback:
		return "the old CA signs again"
	case "":
		text := "no certificate of the old CA is valid, or rotation accept was run"
		if status.OutstandingUntil != nil {
			text += "; the last certificate expires at " + status.OutstandingUntil.UTC().Format(time.RFC3339)
		}
		return text
	default:
		return "the manager has recorded " + f.operation.Command()
	}
}

// observe reports whether the operation is done, and prints progress.
func (f *follower) observe(ctx context.Context) (bool, error) {
	objs, err := f.listAuthorities(ctx, f.before.Name)
	switch {
	case err != nil:
		return false, f.progress(fmt.Sprintf("the API server does not answer: %v", err))
	case len(objs) == 0 || objs[0].UID != f.before.UID:
		return false, fmt.Errorf("SigningAuthority %s was deleted", f.before.Name)
	}
	obj := &objs[0]
	if !f.answered {
		answered, err := f.answer(obj)
		if !answered || err != nil {
			return false, err
		}
		f.answered = true
	}
	status := &obj.Status
	if err := f.undone(status); err != nil {
		return false, err
	}
	if f.done(status) {
		return true, f.print("%s: done: %s", obj.Name, summary(status))
	}
	return false, f.progress(summary(status))
}

// undone returns an error if the accepted operation was stopped or undone.
func (f *follower) undone(now *v1alpha1.SigningAuthorityStatus) error {
	switch last := now.LastOperation; f.operation {
	case v1alpha1.OperationComplete:
		if now.Phase == v1alpha1.Prepared && last != nil && last.Result == v1alpha1.Refused {
			return errors.New(oneLine(last.Message))
		}
	case v1alpha1.OperationStart:
		if now.Phase == v1alpha1.Completed && v1alpha1.SameCA(f.before.Status.Signing, now.Signing) {
			return errors.New("the new CA does not sign: the rotation was rolled back meanwhile")
		}
	}
	return nil
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

// done reports whether what the accepted operation leads to is reached. Without an operation, that is when no certificate
// of the retiring CA prevents a completion.
func (f *follower) done(now *v1alpha1.SigningAuthorityStatus) bool {
	switch f.operation {
	case v1alpha1.OperationStart:
		return now.Phase != v1alpha1.Preparing && now.Phase != v1alpha1.New
	case v1alpha1.OperationComplete:
		return f.before.Status.Retiring == nil || v1alpha1.SameCA(f.before.Status.Retiring, now.LastRetired)
	case v1alpha1.OperationRollback:
		return rolledBack(&f.before.Status, now)
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

// keyIDs returns the key IDs of the CAs in status that match.
func keyIDs(status *v1alpha1.SigningAuthorityStatus, match func(*v1alpha1.CAStatus) bool) []string {
	var ids []string
	for _, ca := range []*v1alpha1.CAStatus{status.Candidate, status.Signing, status.Retiring} {
		if ca != nil && match(ca) {
			ids = append(ids, ca.KeyID)
		}
	}
	return ids
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
