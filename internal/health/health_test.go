package health

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// checks returns a probe with one check that fails with the error in err.
func checks(t *testing.T, err *error, log func(string)) *probe {
	t.Helper()
	p := newProbe("readyz", funcr.New(func(_, args string) { log(args) }, funcr.Options{}))
	clock := func(*http.Request) error { return *err }
	if err := errors.Join(p.add("ping", healthz.Ping), p.add("a-first", healthz.Ping), p.add("clock", clock)); err != nil {
		t.Fatal(err)
	}
	return p
}

func ask(p *probe, path string) (int, string) {
	answer := httptest.NewRecorder()
	p.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer.Code, answer.Body.String()
}

// TestAnswerNamesTheFailedCheckFirst checks the answers, and that each check has a name of its own.
func TestAnswerNamesTheFailedCheckFirst(t *testing.T) {
	t.Parallel()
	err := errors.New("the clock is 6m ahead:\n\u202eset it")
	p := checks(t, &err, func(string) {})
	if p.add("ping", healthz.Ping) == nil {
		t.Error("two checks have one name")
	}
	const failed = "[-]clock failed: the clock is 6m ahead:\\n\\u202eset it\n"
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/readyz":                          {500, failed + "[+]a-first ok\n[+]ping ok\nreadyz check failed\n"},
		"/readyz?exclude=clock":            {200, "ok"},
		"/readyz?exclude=clock&verbose":    {200, "[+]a-first ok\n[+]ping ok\nreadyz check passed\n"},
		"/readyz/clock":                    {500, failed + "readyz check failed\n"},
		"/readyz/ping":                     {200, "ok"},
		"/readyz/":                         {500, failed + "[+]a-first ok\n[+]ping ok\nreadyz check failed\n"},
		"/readyz/no-such":                  {404, "404 page not found\n"},
		"/readyz?exclude=ping&exclude=any": {500, failed + "[+]a-first ok\nreadyz check failed\n"},
	} {
		if code, body := ask(p, path); code != want.code || body != want.body {
			t.Errorf("%s: %d %q, want %d %q", path, code, body, want.code, want.body)
		}
	}
	err = errors.New(strings.Repeat("x", 100_000))
	if _, body := ask(p, "/readyz"); len(body) > 700 {
		t.Errorf("the answer has %d bytes", len(body))
	}
	err = nil
	if code, body := ask(p, "/readyz"); code != 200 || body != "ok" {
		t.Errorf("%d %q when all pass", code, body)
	}
}

// TestChangesAreLoggedOnce checks that only a change of the failed checks at /readyz is logged.
func TestChangesAreLoggedOnce(t *testing.T) {
	var logged []string
	err := errors.New("no measurement for 1s")
	p := checks(t, &err, func(line string) { logged = append(logged, line) })
	ask(p, "/readyz")
	err = errors.New("no measurement for 2s")
	for _, path := range []string{"/readyz", "/readyz/clock", "/readyz?exclude=clock", "/readyz"} {
		ask(p, path)
	}
	err = nil
	ask(p, "/readyz")
	ask(p, "/readyz")
	if len(logged) != 2 || !strings.Contains(logged[0], "clock failed: no measurement for 1s") || !strings.Contains(logged[1], "pass again") {
		t.Errorf("logged %q", logged)
	}
}
