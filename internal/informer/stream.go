package informer

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

const (
	// longestSilence is how long watches may deliver nothing. An API server sends a bookmark each minute.
	longestSilence = 3 * time.Minute
	// longestGap is how long there may be no watch. client-go waits between attempts for up to half a minute, and
	// reports neither a refused connection nor status 429.
	longestGap = 10 * time.Second
	// openTimeout bounds how long a watch may take to open. Some proxies delay a response until its first event.
	openTimeout = 90 * time.Second
	// listTimeout bounds one page of a list.
	listTimeout = time.Minute
)

// stream lists and watches one resource as long as no change can have been missed. It calls fail with the first
// reason why a change may have been missed: a failed list or watch, silent watches, or no watch at all. A silent
// watch that ends and is opened again still counts as silent. An API server, or a proxy in front of it, may accept
// watches and send nothing.
type stream struct {
	resource                  Resource
	namespace, name, selector string
	grantedBy                 string
	ctx                       context.Context // client-go lists with a context that never ends
	fail                      context.CancelCauseFunc
	silence                   time.Duration // the longest

	mu      sync.Mutex
	open    int         // watches
	asked   int         // requests for watches that have no response yet
	waiting *time.Timer // for a watch
	silent  *time.Timer // since the last list, event or bookmark
	ended   bool
}

// heard records that a list, an event or a bookmark has arrived.
func (s *stream) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
	case s.silent != nil:
		s.silent.Reset(s.silence)
	default:
		s.silent = time.AfterFunc(s.silence, func() {
			s.fail(fmt.Errorf("watch %s: neither an event nor a bookmark for %s", s.resource.GroupResource(), s.silence))
		})
	}
}

// end stops the timers. After it, the stream does not fail.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, timer := range []*time.Timer{s.waiting, s.silent} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// watches changes the number of open watches, and of watches that are requested. While no watch is open, a timer
// limits the time until one is.
func (s *stream) watches(open, asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.asked = s.open+open, s.asked+asked
	if s.waiting != nil {
		s.waiting.Stop()
	}
	if s.ended || s.open > 0 {
		return
	}
	wait := longestGap
	if s.asked > 0 {
		wait = openTimeout
	}
	s.waiting = time.AfterFunc(wait, func() {
		s.fail(fmt.Errorf("watch %s: there has been no watch for %s", s.resource.GroupResource(), wait))
	})
}

// check calls fail with an error that client-go would retry without a message.
func (s *stream) check(verb string, err error) {
	// After an expired version, client-go lists again at once.
	if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		s.fail(s.explain(verb, err))
	}
}

// explain returns an error that says what failed and what to do.
func (s *stream) explain(verb string, err error) error {
	resource := s.resource.GroupResource()
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s in version %s is not installed yet", resource, s.resource.Version)
	case apierrors.IsForbidden(err) && s.grantedBy != "":
		return fmt.Errorf("grant list and watch on %s (%s): %w", resource, s.grantedBy, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("grant list and watch on %s: %w", resource, err)
	}
	return fmt.Errorf("%s %s: %w", verb, resource, err)
}

// plainLists lists before it watches, because a streamed list that fails delays the end of an informer.
type plainLists struct{ *toolscache.ListWatch }

// IsWatchListSemanticsUnSupported implements an interface of client-go's package watchlist.
func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

// listWatch returns the ListWatch for an informer.
func (s *stream) listWatch() *toolscache.ListWatch {
	narrow := func(options *metav1.ListOptions) {
		options.LabelSelector = s.selector
		if s.name != "" {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, s.name).String()
		}
	}
	return &toolscache.ListWatch{
		ListWithContextFunc: func(_ context.Context, options metav1.ListOptions) (runtime.Object, error) {
			narrow(&options)
			if options.ResourceVersion == "0" {
				options.ResourceVersion = "" // the newest version: an old one may hold objects that were deleted since
			}
			ctx, cancel := context.WithTimeout(s.ctx, listTimeout)
			defer cancel()
			list, err := s.resource.list(ctx, s.namespace, options)
			s.check("list", err)
			if err == nil {
				s.heard()
				s.watches(0, 0)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			narrow(&options)
			s.watches(0, 1)
			watcher, err := s.resource.watch(ctx, s.namespace, options)
			s.check("watch", err)
			if err != nil {
				s.watches(0, -1)
				return nil, err
			}
			s.watches(1, -1)
			return s.pass(watcher), nil
		},
	}
}

// pass returns a watch that forwards the events of watcher.
func (s *stream) pass(watcher watch.Interface) watch.Interface {
	events := make(chan watch.Event)
	passed := &passedWatch{Interface: watcher, events: events, stopped: make(chan struct{})}
	go func() {
		defer close(events)
		defer s.watches(-1, 0)
		defer watcher.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-passed.stopped:
				return
			case event, open := <-watcher.ResultChan():
				if !open {
					return
				}
				if event.Type != watch.Error { // an error means that nothing will arrive
					s.heard()
				}
				select {
				case events <- event:
				case <-passed.stopped:
					return
				case <-s.ctx.Done():
					return
				}
			}
		}
	}()
	return passed
}

// passedWatch is a watch whose events go through a stream.
type passedWatch struct {
	watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

// ResultChan returns the events.
func (w *passedWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop ends the watch.
func (w *passedWatch) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.Interface.Stop()
}
