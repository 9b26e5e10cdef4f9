package kit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Patience bounds every wait. Only a failing test needs all of it.
const Patience = 45 * time.Second

// NoError ends the test unless err is nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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

// seen is what one watch of requests and one of Events have shown. They begin with the first wait of a test.
type seen struct {
	mu       sync.Mutex
	end      func() // nil while there are no watches
	requests cache.Indexer
	events   cache.Indexer
	// changed is closed, and replaced, at each change.
	changed chan struct{}
}

// about is the index of Events by the name of their object.
const about = "about"

// start begins to watch.
func (s *seen) start(t testing.TB, p *Plane) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return
	}
	clients, err := kubernetes.NewForConfig(p.Config)
	NoError(t, err)
	factory := informers.NewSharedInformerFactory(clients, 0)
	requests, events := factory.Certificates().V1().CertificateSigningRequests().Informer(), factory.Events().V1().Events().Informer()
	s.changed = make(chan struct{})
	tell := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.tell() }, UpdateFunc: func(any, any) { s.tell() }, DeleteFunc: func(any) { s.tell() },
	}
	for _, informer := range []cache.SharedIndexInformer{requests, events} {
		if _, err := informer.AddEventHandler(tell); err != nil {
			t.Fatal(err)
		}
	}
	if err := events.AddIndexers(cache.Indexers{about: func(obj any) ([]string, error) {
		return []string{obj.(*eventsv1.Event).Regarding.Name}, nil
	}}); err != nil {
		t.Fatal(err)
	}
	s.requests, s.events = requests.GetIndexer(), events.GetIndexer()
	stop := make(chan struct{})
	factory.Start(stop)
	s.end = func() { close(stop); factory.Shutdown() }
}

func (s *seen) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// next returns a channel that is closed at the next change.
func (s *seen) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *seen) stop() {
	s.mu.Lock()
	end := s.end
	s.end = nil
	s.mu.Unlock()
	if end != nil {
		end() // without the lock, which its handlers take
	}
}

// sees waits until check, which looks at what the watches have shown, says yes. It fails with what check found last.
func sees(t testing.TB, what string, check func(*seen) (yes bool, found any)) {
	t.Helper()
	p := PlaneOf(t)
	p.seen.start(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for {
		next := p.seen.next() // before the check, so that no change is missed
		yes, found := check(p.seen)
		if yes {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			text, err := json.MarshalIndent(found, "", " ")
			t.Fatalf("%s: %v %v: found %s", what, ctx.Err(), err, text)
		}
	}
}

// Reaches waits until obj is in state, and returns it so. It does not look at what was before the obj that it is given.
func Reaches(t testing.TB, obj *Request, state csr.State) *Request {
	t.Helper()
	sees(t, fmt.Sprintf("request %s becomes %s", obj.Name, state), func(s *seen) (bool, any) {
		found, exists, err := s.requests.GetByKey(obj.Name)
		if err != nil || !exists {
			return false, err
		}
		now := found.(*Request)
		if obj.UID != "" && obj.UID != now.UID || isOlder(now, obj) || csr.StateOf(now) != state {
			return false, now.Status.Conditions
		}
		now.DeepCopyInto(obj)
		return true, nil
	})
	return obj
}

// isOlder reports whether the watch has shown one, and not yet what led to other.
func isOlder(one, other *Request) bool {
	order, err := resourceversion.CompareResourceVersion(one.ResourceVersion, other.ResourceVersion)
	return err == nil && order < 0
}

// IsDeleted waits until obj, which was there, is deleted.
func IsDeleted(t *testing.T, obj *Request) {
	t.Helper()
	Eventually(t, obj.Name+" is deleted", func(ctx context.Context) error {
		if err := Admin(t).Get(ctx, client.ObjectKeyFromObject(obj), &Request{}); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("it exists, or %w", err)
		}
		return nil
	})
}

// HasEvent waits for a Warning Event about obj with reason, whose note contains every part.
func HasEvent(t testing.TB, obj client.Object, reason string, parts ...string) {
	t.Helper()
	AnEvent(t, obj, reason, func(event *eventsv1.Event) bool {
		for _, part := range parts {
			if !strings.Contains(event.Note, part) {
				return false
			}
		}
		return event.Type == corev1.EventTypeWarning
	})
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
	sees(t, fmt.Sprintf("Event %s about %s", reason, obj.GetName()), func(s *seen) (bool, any) {
		all, err := s.events.ByIndex(about, obj.GetName())
		if err != nil {
			return false, err
		}
		for _, each := range all {
			if event := each.(*eventsv1.Event); isAbout(event, obj) && event.Reason == reason && fits(event) {
				return true, nil
			}
		}
		return false, all
	})
}

func isAbout(event *eventsv1.Event, obj client.Object) bool {
	return event.Regarding.Name == obj.GetName() && (obj.GetUID() == "" || event.Regarding.UID == obj.GetUID())
}

// EventsOf returns the Events about obj that the API server has now.
func EventsOf(ctx context.Context, t testing.TB, obj client.Object) []eventsv1.Event {
	t.Helper()
	events := &eventsv1.EventList{}
	NoError(t, Admin(t).List(ctx, events))
	var found []eventsv1.Event
	for _, event := range events.Items {
		if isAbout(&event, obj) {
			found = append(found, event)
		}
	}
	return found
}
