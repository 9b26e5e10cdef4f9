package commands

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// hanging is an API server that never answers, or that sends the headers of its answer and then hangs.
type hanging struct {
	headers bool
	asked   context.Context
}

func (h *hanging) RoundTrip(request *http.Request) (*http.Response, error) {
	h.asked = request.Context()
	if h.headers {
		return &http.Response{Body: hangingBody{h.asked}}, nil
	}
	<-h.asked.Done()
	return nil, h.asked.Err()
}

type hangingBody struct{ asked context.Context }

func (b hangingBody) Read([]byte) (int, error) {
	<-b.asked.Done()
	return 0, b.asked.Err()
}

func (hangingBody) Close() error { return nil }

// TestBoundedEndsWhatHangs checks when a call without a timeout of its own ends. The test ends its watches after an hour.
func TestBoundedEndsWhatHangs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		query   string
		headers bool
		want    time.Duration
	}{
		"no answer to a list":            {"limit=500", false, time.Minute},
		"half an answer to a list":       {"", true, time.Minute},
		"half an answer to another list": {"watch=false", true, time.Minute},
		"no answer to a watch":           {"watch=true&allowWatchBookmarks=true", false, time.Hour},
		"a watch that brings no changes": {"watch=true", true, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost/api/v1/nodes?"+test.query, nil)
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				response, err := newBounded(&hanging{headers: test.headers}).RoundTrip(request)
				if err == nil {
					_, err = io.ReadAll(response.Body)
					_ = response.Body.Close()
				}
				if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != test.want {
					t.Errorf("it ended after %s with %v, want %s", took, err, test.want)
				}
			})
		})
	}
}

// TestBoundedEndsWithTheAnswer checks that a call leaves no timer when its answer has been read.
func TestBoundedEndsWithTheAnswer(t *testing.T) {
	t.Parallel()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://localhost/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	server := &hanging{headers: true}
	response, err := newBounded(server).RoundTrip(request)
	if err != nil || server.asked.Err() != nil {
		t.Fatalf("error %v, context %v", err, server.asked.Err())
	}
	if err := response.Body.Close(); err != nil || !errors.Is(server.asked.Err(), context.Canceled) {
		t.Errorf("error %v, context %v", err, server.asked.Err())
	}
}
