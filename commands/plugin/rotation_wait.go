package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
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
	// unfollowed is when the follower first saw that the manager had picked up the operation and not followed it.
	unfollowed time.Time
	// seen holds the Events about earlier refusals. eventsErr says why Events can't be read.
	seen      []types.UID
	eventsErr error
}

// newFollower returns a follower of operation, which is requested, or was requested, at obj.
func (r *rotation) newFollower(
	ctx context.Context, obj *v1alpha1.SigningAuthority, operation v1alpha1.Operation,
) *follower {
	f := &follower{rotation: r, operation: operation, before: obj.DeepCopy(), start: r.now()}
	for _, event := range f.refusals(ctx) {
		f.seen = append(f.seen, event.UID)
	}
	return f
}

// attach waits for what is under way at obj.
func (r *rotation) attach(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	status := &obj.Status
	if pending := requested(obj); pending != "" && status.TakenOperation == "" {
		return r.newFollower(ctx, obj, pending).follow(ctx)
	}
	f := r.newFollower(ctx, obj, "")
	switch {
	case status.Phase == v1alpha1.New, status.Phase == v1alpha1.Preparing:
		f.operation, f.before.Status.Generation = v1alpha1.RotateStart, -1
	case status.Phase == v1alpha1.Completing:
		f.operation = v1alpha1.RotateComplete
	case status.Phase == v1alpha1.Prepared && status.Intent == swapBack:
		f.operation = v1alpha1.RotateRollback
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
	case v1alpha1.RotateStart:
		return "the new CA is trusted and signs"
	case v1alpha1.RotateComplete:
		return "every API server refuses the old CA and its key is destroyed"
	case v1alpha1.RotateRollback:
		return "the old CA signs again"
	case "":
		text := "no certificate of the old CA is valid, or rotation accept was run"
		if last := lastOutstanding(status); last != nil {
			text += "; the last certificate expires at " + last.UTC().Format(time.RFC3339)
		}
		return text
	default:
		return "the manager has recorded " + f.operation.Command()
	}
}

// lastOutstanding returns when the last certificate of the retiring CA expires, or nil.
func lastOutstanding(status *v1alpha1.SigningAuthorityStatus) *metav1.Time {
	var last *metav1.Time
	for i := range status.Outstanding {
		if until := &status.Outstanding[i].Until; last == nil || last.Before(until) {
			last = until
		}
	}
	return last
}

// observe reports whether the operation is done, and prints progress.
func (f *follower) observe(ctx context.Context) (bool, error) {
	objs, err := f.listAuthorities(ctx, f.before.Name)
	switch {
	case err != nil:
		return false, f.progress(fmt.Sprintf("the API server does not answer: %v", err))
	case len(objs) == 0:
		return false, fmt.Errorf("SigningAuthority %s was deleted", f.before.Name)
	}
	obj := &objs[0]
	for _, event := range f.refusals(ctx) {
		if f.isAbout(event.Message) {
			return false, errors.New(oneLine(event.Message))
		}
	}
	if f.operation != "" && (requested(obj) != "" || obj.Status.TakenOperation != "") {
		return false, f.progress(fmt.Sprintf("the manager has not picked up %s yet", f.operation.Command()))
	}
	followed, done := progressOf(f.operation, &f.before.Status, &obj.Status)
	switch {
	case done:
		return true, f.print("%s: done: %s", obj.Name, summary(&obj.Status))
	case followed:
		f.unfollowed = time.Time{}
		return false, f.progress(summary(&obj.Status))
	}
	return false, f.unexplained(obj)
}

// isAbout reports whether note, of an Event, refuses the operation. Earlier managers named it by its annotation.
func (f *follower) isAbout(note string) bool {
	if f.operation == "" {
		return false
	}
	return strings.HasPrefix(note, f.operation.Command()+" is refused") ||
		strings.HasPrefix(note, string(f.operation)+" is refused") ||
		f.operation == v1alpha1.RotateComplete && strings.HasPrefix(note, "completion stops")
}

// unexplained returns an error once the manager has not followed the operation for longer than an Event takes to
// arrive.
func (f *follower) unexplained(obj *v1alpha1.SigningAuthority) error {
	now := f.now()
	f.unfollowed = cmp.Or(f.unfollowed, now)
	if now.Sub(f.unfollowed) <= f.eventTimeout {
		return nil
	}
	why := ", and no Event says why"
	if f.eventsErr != nil {
		why = fmt.Sprintf("; the Event that says why cannot be read (%v)", f.eventsErr)
	}
	return fmt.Errorf("%s is refused%s; allowed now: %s",
		f.operation.Command(), why, v1alpha1.AllowedText(obj.Status.Phase))
}

// progress prints text unless it was printed last.
func (f *follower) progress(text string) error {
	if text = oneLine(text); text == f.printed {
		return nil
	}
	f.printed = text
	return f.remark("%5s  %s", f.now().Sub(f.start).Round(time.Second), text)
}

// refusals returns the Events about refused operations, except those that f has seen.
func (f *follower) refusals(ctx context.Context) []corev1.Event {
	selector := fields.Set{
		"reason": "RotationRefused", "involvedObject.kind": "SigningAuthority", "involvedObject.name": f.before.Name,
	}
	list, err := f.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if f.eventsErr = err; err != nil {
		return nil
	}
	return slices.DeleteFunc(list.Items, func(event corev1.Event) bool { return slices.Contains(f.seen, event.UID) })
}

// progressOf reports whether the manager follows the operation, which was requested at before, and whether it is done.
// Without an operation, it is done when no certificate of the retiring CA prevents a completion.
func progressOf( //nolint:gocyclo // one case for each operation
	operation v1alpha1.Operation, before, now *v1alpha1.SigningAuthorityStatus,
) (followed, done bool) {
	switch operation {
	case v1alpha1.RotateStart:
		followed = now.Generation > before.Generation
		return followed, followed && now.Phase != v1alpha1.Preparing && now.Phase != v1alpha1.New
	case v1alpha1.RotateComplete:
		followed = slices.Contains([]v1alpha1.Phase{v1alpha1.Completing, v1alpha1.Completed}, now.Phase)
		return followed, now.Phase == v1alpha1.Completed
	case v1alpha1.RotateRollback:
		done = rolledBack(before, now)
		return done || now.Intent == swapBack, done
	case v1alpha1.TrustConfirmed:
		done = confirmedAt(now) != confirmedAt(before)
	case v1alpha1.OutstandingAccepted:
		done = now.Retiring != nil && now.Retiring.OutstandingAcceptedAt != nil
	case v1alpha1.AdoptionAttested:
		attested := func(ca *v1alpha1.CAStatus) bool { return ca.AttestedAt != nil }
		done = len(keyIDs(now, attested)) > len(keyIDs(before, attested))
	case "":
		return true, now.Phase != v1alpha1.Prepared || len(now.Outstanding) == 0 ||
			now.Retiring != nil && now.Retiring.OutstandingAcceptedAt != nil
	}
	return done, done
}

// confirmedAt returns when the trust in the candidate or else in the signing CA was confirmed last. A confirmation that
// the manager refuses changes neither.
func confirmedAt(status *v1alpha1.SigningAuthorityStatus) (last time.Time) {
	for _, ca := range []*v1alpha1.CAStatus{status.Candidate, status.Signing} {
		if ca != nil && ca.TrustConfirmedAt != nil && ca.TrustConfirmedAt.After(last) {
			last = ca.TrustConfirmedAt.UTC()
		}
	}
	return last
}

// rolledBack reports whether the CA signs to which a rollback from before returns.
func rolledBack(before, now *v1alpha1.SigningAuthorityStatus) bool {
	goal := before.Signing
	if before.Phase == v1alpha1.Prepared {
		goal = before.Retiring
	}
	signs := goal != nil && now.Signing != nil && now.Signing.Fingerprint == goal.Fingerprint
	return signs && now.Phase != v1alpha1.Preparing
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
