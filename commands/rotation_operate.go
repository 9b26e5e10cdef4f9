package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// operate asks for an operation, and waits for what it brings.
func (r *rotation) operate(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	operation := rotationVerbs[r.verb]
	if meaning := meaning(operation, obj); meaning != "" && !r.yes {
		if err := r.say("%s", meaning); err != nil {
			return err
		}
		return errors.New("not asked for: add --yes if that is what you want")
	}
	before := &refusals{}
	before.read(ctx, r.api, obj)
	if err := r.ask(ctx, obj, operation); err != nil {
		return err
	}
	if !r.wait {
		return r.say("%s: asked for %s; rotation status %s shows what becomes of it", obj.Name, operation, obj.Name)
	}
	return r.follow(ctx, obj, operation, before)
}

func (r *rotation) say(format string, args ...any) error {
	_, err := fmt.Fprintln(r.out, oneLine(fmt.Sprintf(format, args...)))
	return err
}

// ask sets the annotation, unless it would be refused.
func (r *rotation) ask(ctx context.Context, obj *v1alpha1.SigningAuthority, operation v1alpha1.Operation) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := r.api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return fmt.Errorf("read SigningAuthority %s: %w", obj.Name, err)
		}
		pending := v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation])
		switch {
		case pending == operation:
			return nil // somebody has asked for it already
		case pending != "":
			return refused(operation, obj, fmt.Sprintf("%s was asked for, and the manager has not taken it yet", pending))
		case !slices.Contains(v1alpha1.Allowed(obj.Status.Phase), operation):
			return refused(operation, obj, "the phase is "+phase(&obj.Status))
		}
		patch := client.MergeFromWithOptions(obj.DeepCopy(), client.MergeFromWithOptimisticLock{})
		metav1.SetMetaDataAnnotation(&obj.ObjectMeta, v1alpha1.OperationAnnotation, string(operation))
		return r.api.Patch(ctx, obj, patch)
	})
}

// refused is the manager's own text.
func refused(operation v1alpha1.Operation, obj *v1alpha1.SigningAuthority, why string) error {
	return fmt.Errorf("%s is refused: %s; allowed now: %s", operation, why, v1alpha1.AllowedText(obj.Status.Phase))
}

// follow waits until operation, which has been asked for on before, is done or refused.
func (r *rotation) follow(ctx context.Context, before *v1alpha1.SigningAuthority, operation v1alpha1.Operation, known *refusals) error {
	f := &follower{rotation: r, before: before, operation: operation, known: known, start: r.clock.Now()}
	err := wait.PollUntilContextCancel(ctx, r.every, true, f.look)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("not done within %s: %s; the manager goes on", r.timeout, f.said)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped waiting: %s; the manager goes on", f.said)
	}
	return err
}

type follower struct {
	*rotation
	before    *v1alpha1.SigningAuthority
	operation v1alpha1.Operation
	known     *refusals
	start     time.Time
	said      string
	// unfollowed is since when it has been taken, and is not followed.
	unfollowed time.Time
}

// look says whether it is done, and tells about what is new.
func (f *follower) look(ctx context.Context) (bool, error) {
	obj := &v1alpha1.SigningAuthority{}
	if err := f.api.Get(ctx, client.ObjectKeyFromObject(f.before), obj); apierrors.IsNotFound(err) {
		return false, fmt.Errorf("SigningAuthority %s is gone", f.before.Name)
	} else if err != nil {
		return false, f.progress(fmt.Sprintf("no answer: %v", err))
	}
	if why := f.known.since(ctx, f.api, obj, f.operation); why != "" {
		return false, errors.New(oneLine(why))
	}
	if obj.Annotations[v1alpha1.OperationAnnotation] != "" || obj.Status.TakenOperation != "" {
		return false, f.progress(fmt.Sprintf("the manager has not taken %s yet", f.operation))
	}
	followed, done := outcome(f.operation, &f.before.Status, &obj.Status)
	switch {
	case done:
		return true, f.say("%s: done: %s", obj.Name, summary(&obj.Status))
	case followed:
		f.unfollowed = time.Time{}
		return false, f.progress(summary(&obj.Status))
	case f.unfollowed.IsZero():
		f.unfollowed = f.clock.Now()
	case f.clock.Now().Sub(f.unfollowed) > f.patience:
		return false, fmt.Errorf("%s is refused%s; allowed now: %s", f.operation, f.known.unread(), v1alpha1.AllowedText(obj.Status.Phase))
	}
	return false, nil
}

// progress says what is new.
func (f *follower) progress(text string) error {
	if text = oneLine(text); text == f.said {
		return nil
	}
	f.said = text
	return f.say("%5s  %s", f.clock.Now().Sub(f.start).Round(time.Second), text)
}

// refusals are the Events by which operations were refused.
type refusals struct {
	uids []types.UID
	err  error // why they can't be read
}

func (k *refusals) list(ctx context.Context, api client.Reader, obj *v1alpha1.SigningAuthority) []eventsv1.Event {
	list := &eventsv1.EventList{}
	k.err = api.List(ctx, list, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{
		"reason": "RotationRefused", "regarding.kind": "SigningAuthority", "regarding.name": obj.Name,
	})
	return list.Items
}

func (k *refusals) read(ctx context.Context, api client.Reader, obj *v1alpha1.SigningAuthority) {
	for _, event := range k.list(ctx, api, obj) {
		k.uids = append(k.uids, event.UID)
	}
}

// since is the text of one about operation that was not known, or empty.
func (k *refusals) since(ctx context.Context, api client.Reader, obj *v1alpha1.SigningAuthority, operation v1alpha1.Operation) string {
	for _, event := range k.list(ctx, api, obj) {
		about := strings.HasPrefix(event.Note, string(operation)+" is refused") ||
			operation == v1alpha1.RotateComplete && strings.HasPrefix(event.Note, "completion stops")
		if about && !slices.Contains(k.uids, event.UID) {
			return event.Note
		}
	}
	return ""
}

// unread says why there is no reason to show.
func (k *refusals) unread() string {
	if k.err != nil {
		return fmt.Sprintf("; why is in an Event that could not be read (%v)", k.err)
	}
	return ", and no Event says why"
}
