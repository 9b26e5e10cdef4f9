package servertime

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// apiServer answers on loopback with a Date and a status that the test sets.
type apiServer struct {
	*httptest.Server
	mu     sync.Mutex
	date   string
	status int
	paths  []string
	ports  map[string]bool
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{status: http.StatusOK, ports: map[string]bool{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.paths, s.ports[r.RemoteAddr] = append(s.paths, r.URL.Path), true
		w.Header()["Date"] = nil
		if s.date != "" {
			w.Header().Set("Date", s.date)
		}
		w.WriteHeader(s.status)
	}))
	t.Cleanup(s.Close)
	return s
}

// says sets what the server answers.
func (s *apiServer) says(status int, date string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.date = status, date
}

// asked returns the paths of the requests since the last call.
func (s *apiServer) asked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	paths := strings.Join(s.paths, " ")
	s.paths = nil
	return paths
}

func newClock(t *testing.T, cfg *rest.Config) *Clock {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func at(ahead time.Duration) string { return time.Now().Add(ahead).UTC().Format(http.TimeFormat) }

// near reports whether a Date that was ahead by that much shows now.
func near(now time.Time, ahead time.Duration) bool {
	return (time.Until(now) - ahead).Abs() < 30*time.Second
}

// TestWrapNotesEveryAnswer sends requests through a transport as the controllers do.
func TestWrapNotesEveryAnswer(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	cfg := &rest.Config{Host: server.URL + "/prefix"}
	c := newClock(t, cfg)
	cfg.Wrap(c.Wrap)
	controllers, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range []struct {
		name   string
		status int
		date   string
		shows  time.Duration
	}{
		{"an hour ahead", http.StatusOK, at(time.Hour), time.Hour},
		{"no Date", http.StatusOK, "", time.Hour},
		{"no time", http.StatusOK, "noon", time.Hour},
		{"from a proxy", http.StatusServiceUnavailable, at(-day), time.Hour},
		{"set back", http.StatusOK, at(0), 0},
		{"not found", http.StatusNotFound, at(-time.Hour), -time.Hour},
		{"forbidden", http.StatusForbidden, at(-2 * time.Hour), -2 * time.Hour},
	} {
		server.says(answer.status, answer.date)
		response, err := controllers.Get(server.URL + "/apis")
		if err != nil || response.StatusCode != answer.status {
			t.Fatalf("%s: error %v, response %+v", answer.name, err, response)
		}
		_ = response.Body.Close()
		now, err := c.Now(t.Context())
		skew, skewErr := c.Skew(t.Context())
		if err != nil || skewErr != nil || !near(now, answer.shows) || (skew+answer.shows).Abs() > 30*time.Second {
			t.Errorf("%s: it is %s, skew %s, errors %v and %v", answer.name, now, skew, err, skewErr)
		}
		if asked := server.asked(); asked != "/apis" {
			t.Errorf("%s: the server was asked for %s", answer.name, asked)
		}
	}
	server.says(http.StatusOK, at(-3*time.Hour))
	if now, err := c.Fresh(t.Context()); err != nil || !near(now, -3*time.Hour) {
		t.Errorf("it is %s, error %v", now, err)
	}
	if asked := server.asked(); asked != "/prefix/version" {
		t.Errorf("the server was asked for %s", asked)
	}
	server.Close()
	if _, err := controllers.Get(server.URL); err == nil {
		t.Error("a request to a closed server has an answer")
	}
}

// TestQuestion checks which answers tell the time. All questions share a connection.
func TestQuestion(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	c := newClock(t, &rest.Config{Host: server.URL})
	for _, test := range []struct {
		status int
		date   string
		err    string
	}{
		{http.StatusOK, at(0), ""},
		{http.StatusUnauthorized, at(0), ""}, // all from an API server
		{http.StatusForbidden, at(0), ""},
		{http.StatusServiceUnavailable, at(0), "/version: status 503 Service Unavailable"},
		{http.StatusOK, "", "/version: the answer has no valid Date header: configure the proxy in front of the API server"},
		{http.StatusOK, "noon", "/version: the answer has no valid Date header: "},
	} {
		server.says(test.status, test.date)
		c.failed.err = nil // the pause after a failure is over
		now, err := c.Fresh(t.Context())
		if test.err == "" && (err != nil || !near(now, 0)) ||
			test.err != "" && (err == nil || !strings.Contains(err.Error(), "not known: GET "+server.URL+test.err)) {
			t.Errorf("status %d, Date %q: it is %s, error %v", test.status, test.date, now, err)
		}
	}
	if len(server.ports) != 1 {
		t.Errorf("%d connections", len(server.ports))
	}
}

// TestQuestionEnds asks a server that does not answer.
func TestQuestionEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClock(t, &rest.Config{Host: "http://api.example", Transport: roundTrip(func(request *http.Request) (*http.Response, error) {
			<-request.Context().Done()
			return nil, context.Cause(request.Context())
		})})
		start := time.Now()
		if _, err := c.Now(t.Context()); err == nil || time.Since(start) != 10*time.Second {
			t.Errorf("error %v after %s", err, time.Since(start))
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// client-go looks for the transport inside.
func TestWrapCanBeUnwrapped(t *testing.T) {
	t.Parallel()
	next := &http.Transport{}
	if wrapper, ok := new(Clock).Wrap(next).(utilnet.RoundTripperWrapper); !ok || wrapper.WrappedRoundTripper() != next {
		t.Error("the transport inside is hidden")
	}
}
