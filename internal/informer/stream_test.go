package informer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// staged is a resource whose watches the test controls.
type staged struct {
	mu       sync.Mutex
	watchers chan *watch.FakeWatcher
	nodes    []corev1.Node
	refused  error
	hangs    bool
}

// become sets the nodes that lists and watches return, or the error refused.
func (s *staged) become(refused error, nodes ...corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused, s.nodes = refused, nodes
}

func (s *staged) resource() Resource {
	return Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("nodes"), object: &corev1.Node{},
		list: func(context.Context, string, metav1.ListOptions) (runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return &corev1.NodeList{Items: slices.Clone(s.nodes)}, s.refused
		},
		watch: func(ctx context.Context, _ string, _ metav1.ListOptions) (watch.Interface, error) {
			if s.hangs {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refused != nil {
				return nil, s.refused
			}
			watcher := watch.NewFake()
			s.watchers <- watcher
			return watcher, nil
		},
	}
}

// TestStreamNoticesWhatItMayHaveMissed checks that a stream fails in time if a change may have been missed, and that
// it does not fail otherwise.
func TestStreamNoticesWhatItMayHaveMissed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		act   func(*staged, *watch.FakeWatcher, func())
		after time.Duration
		want  string // empty means no failure
	}{
		"bookmarks each minute": {
			act: func(_ *staged, w *watch.FakeWatcher, _ func()) {
				for range 60 {
					time.Sleep(time.Minute)
					w.Action(watch.Bookmark, &corev1.Node{})
				}
			},
			after: longestSilence - time.Second,
		},
		"silent watches that end, one after another": {
			act: func(s *staged, w *watch.FakeWatcher, again func()) {
				for range 3 {
					time.Sleep(longestSilence / 3)
					w.Stop()
					again()
					w = <-s.watchers
				}
			},
			after: time.Second, want: "watch nodes: neither an event nor a bookmark for 3m0s",
		},
		"watches that deliver only errors": {
			act: func(s *staged, w *watch.FakeWatcher, again func()) {
				for range 8 {
					time.Sleep(longestSilence / 9)
					w.Error(&metav1.Status{Reason: metav1.StatusReasonTooManyRequests})
					w.Stop()
					again()
					w = <-s.watchers
				}
			},
			after: longestSilence / 8, want: "watch nodes: neither an event nor a bookmark for 3m0s",
		},
		"silence": {after: longestSilence + time.Second, want: "watch nodes: neither an event nor a bookmark for 3m0s"},
		"a watch that ends and is opened again": {
			act: func(_ *staged, w *watch.FakeWatcher, again func()) {
				w.Stop()
				time.Sleep(longestGap - time.Second)
				again()
			},
			after: longestGap * 2,
		},
		"a watch that ends": {
			act:   func(_ *staged, w *watch.FakeWatcher, _ func()) { w.Stop() },
			after: longestGap + time.Second, want: "watch nodes: there has been no watch for 10s",
		},
		"a watch that ends, and the next watch is refused": {
			act: func(s *staged, w *watch.FakeWatcher, again func()) {
				s.refused = errors.New("connection refused")
				w.Stop()
				again()
			},
			want: "watch nodes: connection refused",
		},
		"a watch that ends, and the next watch gets a 429": {
			act: func(s *staged, w *watch.FakeWatcher, again func()) {
				s.refused = apierrors.NewTooManyRequests("later", 1)
				w.Stop()
				again()
			},
			want: "watch nodes: later",
		},
		"a watch that ends, and the next watch is not answered": {
			act: func(s *staged, w *watch.FakeWatcher, again func()) {
				s.hangs = true
				w.Stop()
				go again()
			},
			after: openTimeout + time.Second, want: "watch nodes: there has been no watch for 1m30s",
		},
		"an expired version": {
			act: func(s *staged, w *watch.FakeWatcher, again func()) {
				s.refused = apierrors.NewResourceExpired("too old")
				w.Stop()
				again()
				s.refused = nil
				again()
			},
			after: longestGap * 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, fail := context.WithCancelCause(t.Context())
				source := &staged{watchers: make(chan *watch.FakeWatcher, 10)}
				followed := &stream{resource: source.resource(), ctx: ctx, fail: fail, silence: longestSilence}
				from := followed.listWatch()
				again := func() {
					opened, err := from.WatchWithContext(ctx, metav1.ListOptions{})
					if err != nil {
						return
					}
					go func() {
						for range opened.ResultChan() {
						}
					}()
				}
				if _, err := from.ListWithContext(ctx, metav1.ListOptions{}); err != nil {
					t.Fatal(err)
				}
				again()
				if test.act != nil {
					test.act(source, <-source.watchers, again)
				}
				time.Sleep(test.after)
				synctest.Wait()
				got := ""
				if cause := context.Cause(ctx); cause != nil {
					got = cause.Error()
				}
				if !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
					t.Errorf("failed with %q, want %q", got, test.want)
				}
				followed.end()
				fail(nil)
				synctest.Wait()
			})
		})
	}
}
