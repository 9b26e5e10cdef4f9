package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

const (
	// longestSilence is how long watches may bring nothing. An API server sends a bookmark each minute.
	longestSilence = 3 * time.Minute
	// longestGap is how long there may be no watch. client-go waits between attempts for up to half a minute, and tells
	// nobody of a refused connection or of status 429.
	longestGap = 10 * time.Second
	// openTimeout bounds how long a watch may take to open. Some proxies hold an answer back until it has a first
	// event.
	openTimeout = 90 * time.Second
	// listTimeout bounds one page of a list.
	listTimeout = time.Minute
)

// stream follows one resource for as long as nothing can have been missed. It calls fail with the first reason why
// something may have been: a list or a watch that fails, watches that are silent, or no watch at all. A silent watch that
// ends and is opened anew stays silent: an API server, or a proxy before it, may take watches and bring nothing by any.
type stream struct {
	from                  *upstream
	ctx                   context.Context // client-go lists with a context that never ends
	fail                  context.CancelCauseFunc
	silence, gap, opening time.Duration

	mu      sync.Mutex
	open    int         // watches
	asked   int         // for watches, without an answer yet
	waiting *time.Timer // for a watch
	silent  *time.Timer // since the last list, event or bookmark
	ended   bool
}

// newStream returns a stream that takes no longer silence than the given one.
func newStream(ctx context.Context, from *upstream, silence time.Duration, fail context.CancelCauseFunc) *stream {
	return &stream{from: from, ctx: ctx, fail: fail, silence: silence, gap: longestGap, opening: openTimeout}
}

// heard notes that a list, an event or a bookmark has come.
func (s *stream) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
	case s.silent != nil:
		s.silent.Reset(s.silence)
	default:
		s.silent = time.AfterFunc(s.silence, func() {
			s.fail(fmt.Errorf("watch %s: %w for %s", s.from.resource.GroupResource(), errSilent, s.silence))
		})
	}
}

// end stops what runs. The stream fails no more.
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

// watches notes what has changed in the number of watches that are open, and of those that are asked for. While there
// is none, one must be open in time.
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
	wait := s.gap
	if s.asked > 0 {
		wait = s.opening
	}
	s.waiting = time.AfterFunc(wait, func() {
		s.fail(fmt.Errorf("watch %s: there has been no watch for %s", s.from.resource.GroupResource(), wait))
	})
}

// check calls fail with what no retry of the informer's own should hide.
func (s *stream) check(verb string, err error) {
	// An expired version is followed by a new list at once.
	if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		s.fail(explain(verb, s.from.resource, err))
	}
}

// plainLists lists before it watches: a streamed list that fails holds an informer up when it is to stop.
type plainLists struct{ *toolscache.ListWatch }

// IsWatchListSemanticsUnSupported is what client-go's watchlist package asks for.
func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

// listWatch returns what an informer reads from.
func (s *stream) listWatch(narrow func(*metav1.ListOptions)) *toolscache.ListWatch {
	return &toolscache.ListWatch{
		ListWithContextFunc: func(_ context.Context, options metav1.ListOptions) (runtime.Object, error) {
			narrow(&options)
			if options.ResourceVersion == "0" {
				options.ResourceVersion = "" // the newest, not any: what was deleted may be in an old one
			}
			ctx, cancel := context.WithTimeout(s.ctx, listTimeout)
			defer cancel()
			list, err := s.from.list(ctx, options)
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
			watcher, err := s.from.watch(ctx, options)
			s.check("watch", err)
			if err != nil {
				s.watches(0, -1)
				return nil, err
			}
			s.watches(1, -1)
			return s.passing(watcher), nil
		},
	}
}

// passing passes on what watcher brings.
func (s *stream) passing(watcher watch.Interface) watch.Interface {
	events := make(chan watch.Event)
	passed := &proxyWatch{Interface: watcher, events: events, stopped: make(chan struct{})}
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
				if event.Type != watch.Error { // which says that nothing comes
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

var errSilent = errors.New("neither an event nor a bookmark")

// proxyWatch is a watch whose events go through a stream.
type proxyWatch struct {
	watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

// ResultChan returns the events.
func (w *proxyWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop ends the watch.
func (w *proxyWatch) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.Interface.Stop()
}
