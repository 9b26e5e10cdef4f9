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

// TestAnswers sends requests through a transport as the controllers do, and questions. It checks which answers tell the time, and
// that all questions share one connection, which is not that of the controllers.
func TestAnswers(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var path, date string
	status, ports := 0, map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		path, ports[r.RemoteAddr], w.Header()["Date"] = r.URL.Path, true, nil
		if date != "" {
			w.Header().Set("Date", date)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	asked := func() string {
		mu.Lock()
		defer mu.Unlock()
		return path
	}
	cfg := &rest.Config{Host: server.URL + "/prefix"}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Wrap(c.Wrap)
	controllers, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	at := func(ahead time.Duration) string { return time.Now().Add(ahead).UTC().Format(http.TimeFormat) }
	const noDate = "the answer has no valid Date header: configure the proxy in front of the API server to forward that header: "
	for _, answer := range []struct {
		name   string
		status int
		date   string
		shows  time.Duration
		err    string // of a question
	}{
		{"an hour ahead", http.StatusOK, at(time.Hour), time.Hour, ""},
		{"no Date", http.StatusOK, "", time.Hour, noDate},
		{"no time", http.StatusOK, "noon", time.Hour, noDate},
		{"from a proxy", http.StatusServiceUnavailable, at(-day), time.Hour, "status 503 Service Unavailable"},
		{"set back", http.StatusOK, at(0), 0, ""},
		{"unauthorized", http.StatusUnauthorized, at(-time.Hour), -time.Hour, ""}, // all from an API server
		{"forbidden", http.StatusForbidden, at(-2 * time.Hour), -2 * time.Hour, ""},
	} {
		mu.Lock()
		status, date = answer.status, answer.date
		mu.Unlock()
		response, err := controllers.Get(server.URL + "/apis")
		if err != nil || response.StatusCode != answer.status {
			t.Fatalf("%s: error %v, response %+v", answer.name, err, response)
		}
		_ = response.Body.Close()
		now, err := c.Now(t.Context())
		skew, skewErr := c.Skew(t.Context())
		near := (time.Until(now)-answer.shows).Abs() < 30*time.Second && (skew+answer.shows).Abs() < 30*time.Second
		if err != nil || skewErr != nil || !near || asked() != "/apis" {
			t.Errorf("%s: it is %s, skew %s, errors %v and %v, asked for %s", answer.name, now, skew, err, skewErr, asked())
		}
		c.failed.err = nil // the pause after a failure is over
		now, err = c.Fresh(t.Context())
		told := err == nil && answer.err == "" && (time.Until(now)-answer.shows).Abs() < 30*time.Second
		if !told && (err == nil || answer.err == "" || !strings.Contains(err.Error(), "not known: GET "+server.URL+"/prefix/version: "+answer.err)) {
			t.Errorf("%s: the answer to a question tells %s, error %v", answer.name, now, err)
		}
	}
	if len(ports) != 2 || asked() != "/prefix/version" {
		t.Errorf("%d connections, the last question is for %s", len(ports), asked())
	}
	server.Close()
	if _, err := controllers.Get(server.URL); err == nil {
		t.Error("a request to a closed server has an answer")
	}
}

// TestQuestionEnds asks a server that does not answer.
func TestQuestionEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(&rest.Config{Host: "http://api.example", Transport: roundTrip(func(request *http.Request) (*http.Response, error) {
			<-request.Context().Done()
			return nil, context.Cause(request.Context())
		})})
		if err != nil {
			t.Fatal(err)
		}
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
