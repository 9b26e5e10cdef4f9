// Package apiuse observes the results of the manager's own calls to API servers as they happen. A periodic check
// would report a healthy connection until its next run.
package apiuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

const (
	// longestSilence is how long a watch may deliver nothing. An API server sends a bookmark each minute.
	longestSilence = 3 * time.Minute
	// unreachableAfter is how long all calls may fail before the replica is not ready. One lost connection is no
	// outage.
	unreachableAfter = 3 * time.Second
	// staleAfter is how long a collection that the controllers use may have no watch. client-go retries every half
	// minute.
	staleAfter = 45 * time.Second
)

var (
	reachable = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_api_server_reachable",
		Help: "1 when the last call of the manager to an API server was answered, " +
			"0 when there was no answer or its credentials were not accepted.",
	})
	refusedTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "csr_api_refused_total",
		Help: "Calls of the manager that an API server refused with status 401 or 403.",
	})
)

func init() { metrics.Registry.MustRegister(reachable, refusedTotal) }

// Observer records the results of calls. It also ends silent watches, so that client-go opens them again. It is safe
// for concurrent use.
type Observer struct {
	// Silence is how long a watch may deliver nothing. New sets three minutes. Set it before Wrap.
	Silence time.Duration

	clock   clock.PassiveClock
	refused chan struct{}

	mu      sync.Mutex
	since   time.Time // of the first failed call after the last answered one; zero if none has failed
	err     error
	watches map[string]*watched // by path
}

// watched is the state of the watches of one collection.
type watched struct {
	open int
	lost time.Time // when the last one ended
}

// New returns an Observer.
func New() *Observer {
	return &Observer{
		Silence: longestSilence, clock: clock.RealClock{},
		refused: make(chan struct{}, 1), watches: map[string]*watched{},
	}
}

// Wrap adds o to cfg: clients that are created from cfg afterwards report their calls to o.
func (o *Observer) Wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{next: next, observer: o} })
}

// Refused returns a channel that receives a value after calls that an API server refused.
func (o *Observer) Refused() <-chan struct{} {
	if o == nil {
		return nil
	}
	return o.refused
}

// Ready returns a readiness check. It fails if API servers do not answer, or if the watch of one of collections is
// lost, because the cache is stale then. It is no liveness check: a restart would not help.
func (o *Observer) Ready(collections ...string) func(*http.Request) error {
	return func(*http.Request) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		now := o.clock.Now()
		if !o.since.IsZero() && now.Sub(o.since) >= unreachableAfter {
			return fmt.Errorf("no call to the API server has succeeded for %s: %w", now.Sub(o.since).Round(time.Second), o.err)
		}
		for path, one := range o.watches {
			concerned := slices.ContainsFunc(collections, func(collection string) bool {
				return strings.HasSuffix(path, collection)
			})
			if concerned && one.open == 0 && now.Sub(one.lost) >= staleAfter {
				return fmt.Errorf("the cache of %s is stale: there has been no watch for %s", path,
					now.Sub(one.lost).Round(time.Second))
			}
		}
		return nil
	}
}

// Watches reports whether a watch of collection is open.
func (o *Observer) Watches(collection string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for path, one := range o.watches {
		if strings.HasSuffix(path, collection) && one.open > 0 {
			return true
		}
	}
	return false
}

// answered records that an API server has answered.
func (o *Observer) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since, o.err = time.Time{}, nil
	reachable.Set(1)
}

// failed records a call that has failed.
func (o *Observer) failed(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = o.clock.Now()
	}
	o.err = err
	reachable.Set(0)
}

func (o *Observer) refuse() {
	refusedTotal.Inc()
	select {
	case o.refused <- struct{}{}:
	default: // already notified
	}
}

func (o *Observer) watching(path string, by int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.watches[path]
	if one == nil {
		one = &watched{}
		o.watches[path] = one
	}
	if one.open += by; one.open == 0 {
		one.lost = o.clock.Now()
	}
}

type transport struct {
	next     http.RoundTripper
	observer *Observer
}

// WrappedRoundTripper returns the wrapped RoundTripper, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip forwards r and records the result.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if watch := r.URL.Query().Get("watch"); watch != "true" && watch != "1" {
		return t.noted(r)
	}
	ctx, cancel := context.WithCancel(r.Context())
	response, err := t.noted(r.WithContext(ctx))
	if err != nil {
		cancel()
		return response, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body = &closing{ReadCloser: response.Body, end: cancel}
		return response, nil
	}
	path := strings.TrimSuffix(r.URL.Path, "/")
	t.observer.watching(path, 1)
	body := &stream{ReadCloser: response.Body, limit: t.observer.Silence}
	body.timer = time.AfterFunc(body.limit, func() { body.silent.Store(true); cancel() })
	body.end = sync.OnceFunc(func() {
		body.timer.Stop()
		cancel()
		t.observer.watching(path, -1)
	})
	response.Body = body
	return response, nil
}

func (t *transport) noted(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	switch {
	case err != nil && errors.Is(r.Context().Err(), context.Canceled): // the manager canceled the call
	case err != nil:
		t.observer.failed(err)
	case response.StatusCode == http.StatusUnauthorized:
		t.observer.refuse()
		t.observer.failed(fmt.Errorf("the API server does not accept the manager's credentials: status %s", response.Status))
	case response.StatusCode == http.StatusForbidden:
		t.observer.refuse()
		t.observer.answered()
	default:
		t.observer.answered()
	}
	return response, err
}

// stream is the response to a watch.
type stream struct {
	io.ReadCloser
	limit  time.Duration
	timer  *time.Timer
	silent atomic.Bool
	end    func()
}

// Read returns the error of a lost connection if the watch was silent for too long.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if n > 0 && err == nil {
		s.timer.Reset(s.limit)
	}
	if err != nil {
		s.end()
		if s.silent.Load() {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// closing is a ReadCloser that calls end when it is closed.
type closing struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (c *closing) Close() error {
	defer c.end()
	return c.ReadCloser.Close()
}

// Close ends the watch.
func (s *stream) Close() error {
	s.end()
	return s.ReadCloser.Close()
}
