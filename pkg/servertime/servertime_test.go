package servertime

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// machine is a Clock whose own clocks the test sets. Its API servers answer in turn with their offset from noon.
type machine struct {
	*Clock
	at      instant
	servers []time.Duration
	asked   int
	err     error
}

func newMachine(wall time.Time, servers ...time.Duration) *machine {
	m := &machine{at: instant{wall: wall}, servers: servers}
	m.Clock = &Clock{
		log: logr.Discard(), again: make(chan struct{}, 1),
		now: func() instant { return m.at },
		ask: func(context.Context) (time.Time, error) {
			m.asked++
			return noon.Add(m.servers[m.asked%len(m.servers)]).Add(m.at.mono).Truncate(time.Second), m.err
		},
	}
	return m
}

// pass advances both clocks.
func (m *machine) pass(d time.Duration) { m.at.wall, m.at.mono = m.at.wall.Add(d), m.at.mono+d }

func (m *machine) shows(t *testing.T, want time.Time, skew time.Duration) {
	t.Helper()
	got, err := m.Skew()
	if now := m.Now(); err != nil || !now.Equal(want) || got != skew {
		t.Errorf("it is %s, skew %s, error %v; want %s, skew %s", now, got, err, want, skew)
	}
}

func TestClockFollowsTheAPIServers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wall    time.Duration // the machine's clock, relative to noon
		servers []time.Duration
		want    time.Duration // relative to noon
	}{
		"as the API server":             {0, []time.Duration{0}, 0},
		"an hour ahead":                 {time.Hour, []time.Duration{0}, 0},
		"an hour behind":                {-time.Hour, []time.Duration{0}, 0},
		"the earliest of three counts":  {0, []time.Duration{0, -time.Minute, time.Hour}, -time.Minute},
		"fractions of seconds are lost": {0, []time.Duration{1900 * time.Millisecond}, time.Second},
	} {
		m := newMachine(noon.Add(test.wall), test.servers...)
		if _, err := m.Skew(); err == nil || m.Ready(nil) == nil {
			t.Errorf("%s: the skew is known before anything is asked", name)
		}
		m.measure(t.Context())
		m.shows(t, noon.Add(test.want), test.wall-test.want)
		m.pass(time.Minute) // without another measurement
		m.shows(t, noon.Add(test.want+time.Minute), test.wall-test.want)
	}
}

// TestClockIsExact checks that a round finds the fraction of a second that the API server cuts off.
func TestClockIsExact(t *testing.T) {
	t.Parallel()
	const spread, took = time.Second / perRound, 10 * time.Millisecond
	for offset := time.Duration(0); offset < time.Second; offset += 70 * time.Millisecond {
		m := newMachine(noon.Add(offset), offset)
		ask := m.ask
		m.ask = func(ctx context.Context) (time.Time, error) {
			m.pass(spread - took)
			defer m.pass(took)
			return ask(ctx)
		}
		m.measure(t.Context())
		if behind, err := m.Skew(); err != nil || behind < 0 || behind > spread+took {
			t.Errorf("with a fraction of %s the time is %s late, error %v", offset, behind, err)
		}
	}
}

// A reading of an API server that a later round misses counts for a while, and not for ever.
func TestClockForgetsReadings(t *testing.T) {
	t.Parallel()
	m := newMachine(noon, -time.Hour)
	m.measure(t.Context())
	m.servers = []time.Duration{0}
	for range rounds - 1 {
		m.measure(t.Context())
		m.shows(t, noon.Add(-time.Hour), time.Hour)
	}
	m.measure(t.Context())
	m.shows(t, noon, 0)
}

// TestRefreshNoticesAClockThatWasSetBack sets an API server's clock back by a day between two measurements.
func TestRefreshNoticesAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	m := newMachine(noon, 0)
	newest := "10"
	m.newest = func(context.Context) (string, error) { return newest, nil }
	m.measure(t.Context())
	for n, step := range []struct {
		version, newest string
		servers         []time.Duration
		passed          time.Duration
		requests        int
		shows           time.Duration
	}{
		{"5", "10", []time.Duration{0}, 0, perRound, 0},
		{"10", "11", []time.Duration{-day}, 0, 0, 0},                 // it was stored before the clock was set back
		{"11", "11", []time.Duration{0, 0, -day}, 0, perRound, -day}, // one of three API servers
		{"11", "12", []time.Duration{0}, 0, 0, -day},
		{"12", "12", []time.Duration{day}, 0, perRound, -day}, // the API server that is most behind counts
		{"9", "9", []time.Duration{0}, roundEvery - 1, 0, -day},
		{"9", "9", []time.Duration{0}, 1, perRound, -day}, // etcd may have been restored
		{"no number", "9", []time.Duration{0}, 0, perRound, -day},
	} {
		before := m.asked
		m.servers, newest = step.servers, step.newest
		m.pass(step.passed)
		err := m.Refresh(t.Context(), step.version)
		if requests := m.asked - before; err != nil || requests != step.requests {
			t.Errorf("step %d: %d requests, error %v, want %d", n, requests, err, step.requests)
		}
		m.shows(t, noon.Add(step.shows+m.at.mono), -step.shows)
	}
	if len(m.again) != 1 {
		t.Error("the skew is not reported before the next round")
	}
}

// TestRefreshFailsOnceASecond checks that the workers do not wait one after the other while nothing answers.
func TestRefreshFailsOnceASecond(t *testing.T) {
	t.Parallel()
	m := newMachine(noon, 0)
	lists := 0
	m.newest = func(context.Context) (string, error) { lists++; return "10", nil }
	if err := m.Refresh(t.Context(), "5"); err != nil || lists > 0 {
		t.Errorf("while the time is unknown: %d lists, error %v", lists, err)
	}
	if err := (&Clock{}).Refresh(t.Context(), "5"); err != nil {
		t.Errorf("the zero Clock: %v", err)
	}
	m.measure(t.Context())
	m.err = errors.New("connection refused")
	fails := func(want int) {
		t.Helper()
		const text = "measure the time of the API servers: connection refused"
		if err := m.Refresh(t.Context(), "5"); err == nil || err.Error() != text || lists != want {
			t.Errorf("%d lists, error %v, want %d", lists, err, want)
		}
	}
	fails(1)
	fails(1)
	m.pass(roundRetry)
	fails(2)
	m.pass(roundRetry)
	m.newest = func(context.Context) (string, error) { lists++; return "", errors.New("connection refused") }
	asked := m.asked
	if fails(3); m.asked != asked {
		t.Error("it measured although the newest version is unknown")
	}
	m.pass(roundRetry)
	m.err, m.newest = nil, func(context.Context) (string, error) { return "10", nil }
	if err := m.Refresh(t.Context(), "5"); err != nil {
		t.Error(err)
	}
}

// After the machine's clock is set, or the machine sleeps, the time is unknown until the API servers have been asked
// again.
func TestClockMeasuresAgainAfterAStep(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]func(*machine){
		"set forward": func(m *machine) { m.at.wall = m.at.wall.Add(time.Hour) },
		"set back":    func(m *machine) { m.at.wall = m.at.wall.Add(-time.Hour) },
	} {
		m := newMachine(noon, 0)
		m.measure(t.Context())
		step(m)
		if skew, err := m.Skew(); err == nil || len(m.again) != 1 {
			t.Errorf("%s: skew %s without a new measurement", name, skew)
		}
		m.measure(t.Context())
		if !m.Now().Equal(noon) {
			t.Errorf("%s: after a measurement it is %s", name, m.Now())
		}
	}
}

func TestClockKeepsWhatItKnowsWhileNothingAnswers(t *testing.T) {
	t.Parallel()
	m := newMachine(noon.Add(time.Hour), 0)
	m.measure(t.Context())
	m.err = errors.New("connection refused")
	m.pass(time.Hour)
	m.measure(t.Context())
	m.shows(t, noon.Add(time.Hour), time.Hour)
}

func TestReadyNamesTheSkew(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[time.Duration]string{
		MaxSkew: "", -MaxSkew: "",
		MaxSkew + time.Second:  "the manager's clock is 5m1s ahead of the API server's",
		-MaxSkew - time.Second: "the manager's clock is 5m1s behind the API server's",
	} {
		m := newMachine(noon.Add(ahead), 0)
		m.measure(t.Context())
		if err := m.Ready(nil); (err != nil) != (want != "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s ahead: %v", ahead, err)
		}
	}
}

// A Clock with the caller's clock measures nothing.
func TestInjectedClockIsNotMeasured(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakePassiveClock(noon)
	c := Of(fake)
	if err := c.Start(t.Context()); err != nil {
		t.Error(err)
	}
	fake.SetTime(noon.Add(time.Hour))
	if skew, err := c.Skew(); skew != 0 || err != nil || c.Ready(nil) != nil || c.Since(noon) != time.Hour {
		t.Errorf("skew %s, error %v, since %s", skew, err, c.Since(noon))
	}
}

func TestNewestVersion(t *testing.T) {
	t.Parallel()
	status, body := http.StatusOK, `{"metadata": {"resourceVersion": "42"}, "items": []}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const want = "/prefix/apis/certificates.k8s.io/v1/certificatesigningrequests?fieldSelector=metadata.name%3D-"
		if r.URL.String() != want || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("asked %s with %s", r.URL, r.Header)
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	newest, err := newestOf(&rest.Config{Host: server.URL + "/prefix", BearerToken: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := newest(t.Context()); err != nil || got != "42" {
		t.Errorf("%q, error %v", got, err)
	}
	for want, change := range map[string]func(){
		"status 403":        func() { status = http.StatusForbidden },
		"invalid character": func() { status, body = http.StatusOK, "<html>" },
	} {
		change()
		if _, err := newest(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestDateHeader(t *testing.T) {
	t.Parallel()
	addresses := map[string]bool{}
	status, shown := http.StatusOK, noon.Format(http.TimeFormat)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addresses[r.RemoteAddr] = true
		if r.URL.Path != "/prefix/version" {
			t.Errorf("asked %s", r.URL)
		}
		w.Header()["Date"] = nil
		if shown != "" {
			w.Header().Set("Date", shown)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	ask, err := dateOf(&rest.Config{Host: server.URL + "/prefix"})
	if err != nil {
		t.Fatal(err)
	}
	for _, status = range []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden} { // all from an API server
		if got, err := ask(t.Context()); err != nil || !got.Equal(noon) {
			t.Errorf("status %d: %s, error %v", status, got, err)
		}
	}
	if len(addresses) != 3 {
		t.Errorf("%d connections for 3 questions", len(addresses))
	}
	for want, change := range map[string]func(){
		"status 503":         func() { status, shown = http.StatusServiceUnavailable, noon.Format(http.TimeFormat) },
		"has no Date header": func() { status, shown = http.StatusOK, "" },
		"parse Date header":  func() { status, shown = http.StatusOK, "noon" },
	} {
		change()
		if got, err := ask(t.Context()); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %s, error %v", want, got, err)
		}
	}
}
