package apicall

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestDeadlineFollowsTheAPIServer(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	passive := clocktesting.NewFakePassiveClock(now)
	p := newPace(passive)
	is := func(want time.Duration, when string) {
		t.Helper()
		if got, _ := p.begin(); got != want {
			t.Errorf("%s: deadline %s, want %s", when, got, want)
		}
	}
	pass := func(after time.Duration) { passive.SetTime(passive.Now().Add(after)) }
	is(3*time.Second, "at first")

	deadline, start := p.begin()
	pass(time.Second)
	_, other := p.begin()
	pass(time.Second)
	p.answer(other)
	pass(time.Second)
	p.timeout(start, deadline)
	is(3*time.Second, "a call hung while another was answered")

	deadline, start = p.begin()
	pass(deadline)
	p.timeout(start, deadline)
	p.timeout(start, deadline)
	is(6*time.Second, "two calls were late, and none was answered")
	for range 9 {
		deadline, start = p.begin()
		pass(deadline)
		p.timeout(start, deadline)
	}
	is(30*time.Second, "all calls are late")

	_, start = p.begin()
	pass(8 * time.Second)
	p.answer(start)
	is(16*time.Second, "a call took 8 s")
	for range 4 {
		_, start = p.begin()
		p.answer(start)
	}
	is(3*time.Second, "calls are fast again")
}

func TestListsAreTold(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/api/v1/nodes":                  true,
		"/api/v1/nodes/a":                false,
		"/api/v1/namespaces":             true,
		"/api/v1/namespaces/a":           false,
		"/api/v1/namespaces/a/secrets":   true,
		"/api/v1/namespaces/a/secrets/b": false,
		"/apis/certificates.k8s.io/v1/certificatesigningrequests":          true,
		"/apis/certificates.k8s.io/v1/certificatesigningrequests/a":        false,
		"/apis/certificates.k8s.io/v1/certificatesigningrequests/a/status": false,
		"/apis/coordination.k8s.io/v1/namespaces/a/leases/b":               false,
		"/apis/certificates.k8s.io/v1":                                     false,
		"/readyz":                                                          false,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if lists(request) != want {
			t.Errorf("%s: %t", path, !want)
		}
	}
}

// answers returns its responses in order, and counts the calls.
type answers struct {
	all   []string // "500", "500 retry", or an error
	calls int
	sent  []string
}

func (a *answers) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := ""
	if request.Body != nil {
		content, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		sent = string(content)
	}
	a.sent = append(a.sent, sent)
	answer := a.all[min(a.calls, len(a.all)-1)]
	a.calls++
	response := &http.Response{Header: http.Header{}, Body: io.NopCloser(strings.NewReader("text"))}
	switch answer {
	case "200":
		response.StatusCode = 200
	case "500":
		response.StatusCode = 500
	case "503 retry":
		response.StatusCode = 503
		response.Header.Set("Retry-After", "7")
	case "429 retry":
		response.StatusCode = 429
		response.Header.Set("Retry-After", "7")
	case "stream":
		return nil, streamError{StreamID: 1, Code: 2}
	default:
		return nil, errors.New(answer)
	}
	return response, nil
}

func TestCallsThatAreRepeated(t *testing.T) {
	t.Parallel()
	const reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	for name, test := range map[string]struct {
		method, path string
		answers      []string
		calls, code  int
	}{
		"an update after a 500":            {"PUT", "/x", []string{"500", "200"}, 2, 200},
		"an update after two 500s":         {"PUT", "/x", []string{"500", "500", "200"}, 2, 500},
		"a delete after a broken stream":   {"DELETE", "/x", []string{"stream", "200"}, 2, 200},
		"a read after a lost connection":   {"GET", "/x", []string{"read: connection reset by peer", "200"}, 2, 200},
		"a create":                         {"POST", "/x", []string{"500", "200"}, 1, 500},
		"a patch":                          {"PATCH", "/x", []string{"500", "200"}, 1, 500},
		"a review":                         {"POST", reviews, []string{"500", "200"}, 2, 200},
		"an update with 429 and a wait":    {"PUT", "/x", []string{"429 retry", "200"}, 1, 429},
		"an update with 503 and a wait":    {"PUT", "/x", []string{"503 retry", "200"}, 1, 503},
		"an update after an unknown error": {"PUT", "/x", []string{"no such host", "200"}, 1, 0},
		"an update":                        {"PUT", "/x", []string{"200"}, 1, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			below := &answers{all: test.answers}
			request, err := http.NewRequestWithContext(t.Context(), test.method, "https://x"+test.path, strings.NewReader("content"))
			if err != nil {
				t.Fatal(err)
			}
			code := 0
			if response, err := (&transport{next: below, pace: newPace(clocktesting.NewFakePassiveClock(time.Time{}))}).RoundTrip(request); err == nil {
				code = response.StatusCode
				if response.Header.Get("Retry-After") != "" {
					t.Error("client-go would sleep")
				}
				_ = response.Body.Close()
			}
			if below.calls != test.calls || code != test.code {
				t.Errorf("%d calls, status %d, want %d and %d", below.calls, code, test.calls, test.code)
			}
			for _, sent := range below.sent {
				if sent != "content" {
					t.Errorf("sent %q", sent)
				}
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want time.Duration
	}{
		"no error":                 {},
		"another error":            {err: errors.New("x")},
		"seconds":                  {err: apierrors.NewTooManyRequests("x", 7), want: 7 * time.Second},
		"no seconds":               {err: apierrors.NewTooManyRequests("x", 0), want: time.Second},
		"too long":                 {err: apierrors.NewTooManyRequests("x", 4000), want: time.Minute},
		"another status":           {err: apierrors.NewTimeoutError("x", 5), want: 5 * time.Second},
		"a timeout without a wait": {err: apierrors.NewTimeoutError("x", 0)},
	} {
		if got, asked := RetryAfter(test.err); got != test.want || asked != (test.want > 0) {
			t.Errorf("%s: %s, %t", name, got, asked)
		}
	}
}
