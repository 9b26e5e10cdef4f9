package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// milestone is something that happens to a request once.
type milestone int

const (
	issued milestone = iota
	deleted
)

// tracker records when a request reaches a milestone, with a watch of its own. It does not read the requests that exist
// when it starts, and keeps no objects.
type tracker struct {
	watch  *watchtools.RetryWatcher
	cancel context.CancelFunc
	ended  chan struct{} // closed when the watch has ended

	mu      sync.Mutex
	reached [2]map[string]time.Time
	waiting [2]map[string]func() // by name, called once
}

func startTracker(ctx context.Context, admin kubernetes.Interface) (*tracker, error) {
	requests := admin.CertificatesV1().CertificateSigningRequests()
	list, err := requests.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("list requests: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	source := cache.ToWatcherWithContext(&cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return requests.Watch(ctx, options)
		},
	})
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, source)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch requests: %w", err)
	}
	t := &tracker{watch: watcher, cancel: cancel, ended: make(chan struct{})}
	t.forget()
	go t.run()
	return t, nil
}

func (t *tracker) stop() {
	t.cancel()
	<-t.ended
}

func (t *tracker) run() {
	defer close(t.ended)
	for event := range t.watch.ResultChan() {
		request, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
		if !ok { // the API server no longer has the events: the watch ends
			continue
		}
		switch {
		case event.Type == watch.Deleted:
			t.see(deleted, request.Name)
		case len(request.Status.Certificate) > 0:
			t.see(issued, request.Name)
		}
	}
}

func (t *tracker) see(what milestone, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.reached[what][name]; known {
		return
	}
	t.reached[what][name] = time.Now()
	if tell := t.waiting[what][name]; tell != nil {
		delete(t.waiting[what], name)
		tell()
	}
}

// wait waits until all named requests have reached what, and returns the times. A request has one waiter at a time.
func (t *tracker) wait(ctx context.Context, what milestone, names []string) (map[string]time.Time, error) {
	t.mu.Lock()
	missing, all := 0, make(chan struct{})
	for _, name := range names {
		if _, known := t.reached[what][name]; known {
			continue
		}
		missing++
		t.waiting[what][name] = func() {
			if missing--; missing == 0 {
				close(all)
			}
		}
	}
	if missing == 0 {
		close(all)
	}
	t.mu.Unlock()
	select {
	case <-all:
	case <-t.ended:
		return nil, errors.New("the watch on requests has ended")
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %d requests: %w", len(names), context.Cause(ctx))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	times := make(map[string]time.Time, len(names))
	for _, name := range names {
		times[name] = t.reached[what][name]
	}
	return times, nil
}

// count returns how many requests have reached what.
func (t *tracker) count(what milestone) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.reached[what])
}

func (t *tracker) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for what := range t.reached {
		t.reached[what], t.waiting[what] = map[string]time.Time{}, map[string]func(){}
	}
}
