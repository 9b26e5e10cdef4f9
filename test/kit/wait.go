package kit

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// Patience bounds every wait. Only a failing test needs all of it.
const Patience = 45 * time.Second

// NoError ends the test unless err is nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	expect.NoError(t, err)
}

// Must returns a function that returns value, or ends the test if err is not nil: kit.Must(csrenv.NewCA())(t).
func Must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// Check reports an error unless ok. The arguments are evaluated even if ok.
func Check(t testing.TB, ok bool, format string, args ...any) {
	t.Helper()
	expect.True(t, ok, format, args...)
}

// Require ends the test unless ok.
func Require(t testing.TB, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

// Equal reports an error unless got equals want.
func Equal[T any](t testing.TB, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	expect.Equal(t, what, got, want, options...)
}

// OrError returns nil if ok, and otherwise an error.
func OrError(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// AtEnd calls do at the end of the test, which fails if do does.
func AtEnd(t testing.TB, do func() error) {
	t.Helper()
	t.Cleanup(func() {
		if err := do(); err != nil {
			t.Error(err)
		}
	})
}

// Eventually waits until check returns nil, and fails with its last error. To wait for a request or an Event, use
// Reaches or HasEvent: they follow a watch, and make no calls while they wait.
func Eventually(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	Within(t, Patience, what, check)
}

// Within is Eventually with another time limit.
func Within(t testing.TB, bound time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, bound, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v (%v)", what, last, err)
	}
}

// sees watches the objects whose field has value, and waits until check says yes for one of them. It fails with what check found last.
func sees(t testing.TB, what string, list client.ObjectList, field, value string, check func(client.Object) (yes bool, found any)) {
	t.Helper()
	admin, last := Admin(t), []any(nil)
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, Patience, true, func(ctx context.Context) (bool, error) {
		watching, err := admin.Watch(ctx, list, client.MatchingFields{field: value}) // begins with the objects that exist
		if err != nil {
			last = []any{err.Error()}
			return false, nil
		}
		defer watching.Stop()
		last = nil
		for event := range watching.ResultChan() { // until ctx ends, or the API server ends the watch
			obj, is := event.Object.(client.Object)
			if !is || event.Type == watch.Deleted {
				continue
			}
			yes, found := check(obj)
			if yes {
				return true, nil
			}
			last = append(last, found)
		}
		return false, nil
	})
	if err != nil {
		text, _ := json.MarshalIndent(last, "", " ")
		t.Fatalf("%s: %v: found %s", what, err, text)
	}
}

// Reaches waits until obj is in state, and returns it so. It does not look at what was before the obj that it is given.
func Reaches(t testing.TB, obj *Request, state csr.State) *Request {
	t.Helper()
	what := fmt.Sprintf("request %s becomes %s", obj.Name, state)
	sees(t, what, &certificatesv1.CertificateSigningRequestList{}, "metadata.name", obj.Name, func(found client.Object) (bool, any) {
		now := found.(*Request)
		order, err := resourceversion.CompareResourceVersion(now.ResourceVersion, obj.ResourceVersion)
		older := err == nil && order < 0 // the watch has not yet shown what led to obj
		if obj.UID != "" && obj.UID != now.UID || older || csr.StateOf(now) != state {
			return false, now.Status.Conditions
		}
		now.DeepCopyInto(obj)
		return true, nil
	})
	return obj
}

// IsIn checks that obj is in state now.
func IsIn(t testing.TB, obj *Request, state csr.State) {
	t.Helper()
	if got := csr.StateOf(Reload(t, obj)); got != state {
		t.Errorf("request %s is %s, want %s: %+v", obj.Name, got, state, obj.Status.Conditions)
	}
}

// IsDeleted waits until obj, which was there, is deleted.
func IsDeleted(t *testing.T, obj *Request) {
	t.Helper()
	Eventually(t, obj.Name+" is deleted", func(ctx context.Context) error {
		err := Admin(t).Get(ctx, client.ObjectKeyFromObject(obj), &Request{})
		return OrError(apierrors.IsNotFound(err), "it exists, or %w", err)
	})
}

// HasEvent waits for a Warning Event about obj with reason, whose note contains every part.
func HasEvent(t testing.TB, obj client.Object, reason string, parts ...string) {
	t.Helper()
	AnEvent(t, obj, reason, func(event *eventsv1.Event) bool {
		return event.Type == corev1.EventTypeWarning && Notes(event, parts...)
	})
}

// Notes reports whether the note of event contains every part.
func Notes(event *eventsv1.Event, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(event.Note, part) })
}

// HasEventBy waits for a Warning Event of a controller about obj.
func HasEventBy(t *testing.T, obj *Request, controller, reason string) {
	t.Helper()
	AnEvent(t, obj, reason, func(event *eventsv1.Event) bool {
		return event.ReportingController == controller && event.Type == corev1.EventTypeWarning
	})
}

// AnEvent waits for an Event about obj with reason, for which fits returns true.
func AnEvent(t testing.TB, obj client.Object, reason string, fits func(*eventsv1.Event) bool) {
	t.Helper()
	what := fmt.Sprintf("Event %s about %s", reason, obj.GetName())
	sees(t, what, &eventsv1.EventList{}, "regarding.name", obj.GetName(), func(found client.Object) (bool, any) {
		event := found.(*eventsv1.Event)
		about := obj.GetUID() == "" || event.Regarding.UID == obj.GetUID()
		return about && event.Reason == reason && fits(event), event.Reason + ": " + event.Note
	})
}
