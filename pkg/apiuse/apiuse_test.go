package apiuse

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func status(code int) roundTripper {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: io.NopCloser(strings.NewReader(""))}, nil
	}
}

func down(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }

// TestReadyFollowsTheCalls checks that a replica is not ready a few seconds after the first failed call, and is ready
// after the next call that succeeds.
func TestReadyFollowsTheCalls(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer  roundTripper
		refused bool
		want    string
	}{
		"answered":     {status(http.StatusOK), false, ""},
		"not found":    {status(http.StatusNotFound), false, ""},
		"forbidden":    {status(http.StatusForbidden), true, ""},
		"unauthorized": {status(http.StatusUnauthorized), true, "no call to the API server has succeeded for 3s: the API server does not accept the manager's credentials"},
		"gone":         {down, false, "no call to the API server has succeeded for 3s: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := New()
				call := func(answer roundTripper) {
					request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api/version", nil)
					if err != nil {
						t.Fatal(err)
					}
					if response, err := (&transport{next: answer, observer: o}).RoundTrip(request); err == nil {
						_ = response.Body.Close()
					}
				}
				ready := o.Ready()
				call(test.answer)
				if err := ready(nil); err != nil {
					t.Errorf("one call is no outage: %v", err)
				}
				time.Sleep(unreachableAfter)
				call(test.answer)
				if err := ready(nil); (err != nil) != (test.want != "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
					t.Errorf("not ready: %v, want %q", err, test.want)
				}
				if refused := len(o.Refused()) == 1; refused != test.refused {
					t.Errorf("refused: %t", refused)
				}
				call(status(http.StatusOK))
				if err := ready(nil); err != nil {
					t.Errorf("after an answer: %v", err)
				}
			})
		})
	}
}

// TestSilentWatchEnds checks that a silent watch ends like a lost connection, that a watch with bookmarks continues,
// and that a collection without a watch is stale.
func TestSilentWatchEnds(t *testing.T) {
	t.Parallel()
	lines := make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case line := <-lines:
				_, _ = io.WriteString(w, line)
				_ = http.NewResponseController(w).Flush()
			}
		}
	}))
	t.Cleanup(server.Close)
	o := New()
	o.Silence = 2 * time.Second
	cfg := &rest.Config{Host: server.URL}
	o.Wrap(cfg)
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/apis/a/v1/bs?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if !o.Watches("/apis/a/v1/bs") || o.Watches("/apis/a/v1/cs") {
		t.Error("the open watch is not found")
	}
	go func() {
		for range 6 {
			time.Sleep(500 * time.Millisecond)
			lines <- "bookmark\n"
		}
	}()
	start := time.Now()
	all, err := io.ReadAll(response.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || strings.Count(string(all), "bookmark") != 6 || time.Since(start) < 3*time.Second {
		t.Errorf("ended after %s with %v and %q", time.Since(start), err, all)
	}
	_ = response.Body.Close()
	o.mu.Lock()
	one := o.watches["/apis/a/v1/bs"]
	open := one.open
	one.lost = time.Now().Add(-staleAfter)
	o.mu.Unlock()
	if open != 0 || o.Watches("/apis/a/v1/bs") {
		t.Errorf("%d watches are open", open)
	}
	if err := o.Ready("/apis/a/v1/bs")(nil); err == nil || !strings.Contains(err.Error(), "the cache of /apis/a/v1/bs is stale") {
		t.Errorf("ready: %v", err)
	}
	if err := o.Ready("/apis/a/v1/cs")(nil); err != nil {
		t.Errorf("a collection that is not watched: %v", err)
	}
}
