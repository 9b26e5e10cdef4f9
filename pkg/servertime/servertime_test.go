package servertime

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const day = 24 * time.Hour

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// world is a Clock, the machine on which it runs, and the API server that it asks. A test sets all clocks.
type world struct {
	*Clock
	t      *testing.T
	at     instant
	server time.Time
	took   time.Duration // by an answer, on its way back
	asked  int
	down   error
}

// newWorld returns a Clock that has no answer yet. It is noon for the API server, and for the machine if ahead is zero.
func newWorld(t *testing.T, ahead time.Duration) *world {
	w := &world{Clock: &Clock{}, t: t, at: instant{wall: noon.Add(ahead)}, server: noon}
	w.clocks = func() instant { return w.at }
	w.ask = func() error {
		if w.asked++; w.down != nil {
			return w.down
		}
		w.answer(w.took)
		return nil
	}
	return w
}

// answer sends a request whose answer takes so long on its way back.
func (w *world) answer(took time.Duration) {
	sent, date := w.at, w.server.Truncate(time.Second)
	w.pass(took)
	w.note(date, sent)
}

// pass advances all clocks.
func (w *world) pass(d time.Duration) {
	w.at.wall, w.at.mono, w.server = w.at.wall.Add(d), w.at.mono+d, w.server.Add(d)
}

// answersSet sets the API server's clock, and sends a request of the controllers.
func (w *world) answersSet(by time.Duration) {
	w.setServer(by)
	w.answer(0)
}

func (w *world) setMachine(by time.Duration) { w.at.wall = w.at.wall.Add(by) }
func (w *world) setServer(by time.Duration)  { w.server = w.server.Add(by) }

// suspend stops the monotonic clock. The wall clock is right afterwards.
func (w *world) suspend(d time.Duration) { w.setMachine(d); w.setServer(d) }

// shows checks what Now and Skew return, and how many questions that takes.
func (w *world) shows(questions int, want time.Time, skew time.Duration) {
	w.t.Helper()
	before := w.asked
	now, err := w.Now(w.t.Context())
	got, skewErr := w.Skew(w.t.Context())
	if err != nil || skewErr != nil || !now.Equal(want) || got != skew || w.asked-before != questions {
		w.t.Errorf("%s, skew %s, errors %v and %v, %d questions; want %s, skew %s, %d questions",
			now, got, err, skewErr, w.asked-before, want, skew, questions)
	}
	expect.Equal(w.t, "the latest time", w.Latest(), want)
}

// unknown checks that Now and Fresh return an error with that text, and that Skew returns that skew.
func (w *world) unknown(text string, skew time.Duration) {
	w.t.Helper()
	_, err := w.Now(w.t.Context())
	_, freshErr := w.Fresh(w.t.Context())
	expect.True(w.t, err != nil && freshErr != nil && strings.Contains(err.Error(), text) && strings.Contains(freshErr.Error(), text),
		"errors %v and %v, want %q", err, freshErr, text)
	if got, err := w.Skew(w.t.Context()); err != nil || got != skew {
		w.t.Errorf("skew %s, error %v, want %s", got, err, skew)
	}
}

// An API server's clock that is set back is believed with its next answer. Fresh waits for that answer, so a new object never
// seems to be old.
func TestClockFollowsAnAPIServerThatIsSetBack(t *testing.T) {
	for _, back := range []time.Duration{2 * time.Second, 10 * time.Second, time.Hour, day} {
		w := newWorld(t, 0)
		w.shows(1, noon, 0)
		w.setServer(-back)
		w.pass(time.Second)
		one := noon.Add(time.Second)
		w.shows(0, one, 0)
		now, err := w.Fresh(t.Context())
		expect.True(t, err == nil && now.Equal(one.Add(-back)), "set back by %s: it is %s, error %v", back, now, err)
		w.shows(0, one.Add(-back), back)
		w.answersSet(back)
		w.shows(0, one, 0)
	}
}

// An API server's clock that is set forward makes every object old. It is believed only if the machine's clock agrees.
func TestTimeIsUnknownAfterAnAPIServerIsSetForward(t *testing.T) {
	w := newWorld(t, 0)
	w.shows(1, noon, 0)
	w.answersSet(25 * time.Hour)
	w.unknown("the time of the API servers is not known: the API server's clock was set forward by 25h0m0s", -25*time.Hour)
	w.pass(day)
	w.unknown("set forward by 25h0m0s", -25*time.Hour)
	w.answersSet(-time.Hour)
	w.unknown("set forward by 24h0m0s", -day)
	w.answersSet(-day)
	w.shows(0, noon.Add(day), 0)

	w.answersSet(5 * time.Minute)
	w.shows(0, noon.Add(day+5*time.Minute), -5*time.Minute)
	w.answersSet(time.Second)
	w.shows(0, noon.Add(day+5*time.Minute+time.Second), -5*time.Minute-time.Second)

	w = newWorld(t, time.Hour) // the API server's clock is late, and is set right
	w.shows(1, noon, time.Hour)
	w.answersSet(time.Hour)
	w.shows(0, noon.Add(time.Hour), 0)

	w = newWorld(t, -time.Hour) // the machine's clock is late all the time
	w.shows(1, noon, -time.Hour)
	w.answersSet(4 * time.Minute)
	w.shows(0, noon.Add(4*time.Minute), -64*time.Minute)
	w.answersSet(2 * time.Minute)
	w.unknown("set forward by 6m0s", -66*time.Minute)
	w.setMachine(66 * time.Minute)
	w.shows(1, noon.Add(6*time.Minute), 0)
}

// TestLateAnswers checks an answer that took long, and one that was overtaken: its Date may be from before the API server's
// clock was set.
func TestLateAnswers(t *testing.T) {
	w := newWorld(t, 0)
	w.answer(25 * time.Second)
	w.shows(0, noon, 25*time.Second)
	w.answer(0)
	w.shows(0, noon.Add(25*time.Second), 0)
	sent, date := w.at, w.server
	w.pass(time.Second)
	w.answersSet(-time.Hour)
	w.note(date, sent)
	w.shows(0, noon.Add(26*time.Second-time.Hour), time.Hour)
}

// TestClockIsNeverAhead compares the time with that of an API server whose answers take up to half a second, and some half a
// minute.
func TestClockIsNeverAhead(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, 0)
	w.pass(time.Duration(random.Int64N(int64(time.Second))))
	w.took = 500 * time.Millisecond
	for range 10000 {
		took := time.Duration(random.Int64N(int64(w.took)))
		if random.IntN(20) == 0 {
			took *= 60
		}
		w.answer(took)
		w.pass(time.Duration(random.Int64N(int64(10 * time.Second))))
		now, err := w.Now(t.Context())
		if late := w.server.Sub(now); err != nil || late < 0 || late > 31*time.Second {
			t.Fatalf("seed %d: it is %s, and %s for the API server, error %v", seed, now, w.server, err)
		}
	}
}

func TestClockFollowsTheAPIServer(t *testing.T) {
	const limit = 5 * time.Minute
	const fix = " the API server's clock, and nothing is signed above 5m0s: " +
		"synchronize the clock of the manager's node, or that of the API server"
	for ahead, notReady := range map[time.Duration]string{
		0: "", limit: "", -limit: "", 25 * time.Hour: "the manager's clock is 25h0m0s ahead of" + fix,
		limit + time.Second: "the manager's clock is 5m0s ahead of" + fix, -limit - time.Second: "the manager's clock is 5m0s behind" + fix,
		-21 * day: "the manager's clock is 504h0m0s behind" + fix,
	} {
		w := newWorld(t, ahead)
		expect.Equal(t, "before the first answer, the latest time", w.Latest(), noon.Add(ahead))
		w.shows(1, noon, ahead)
		w.pass(time.Minute)
		w.shows(0, noon.Add(time.Minute), ahead)
		w.pass(time.Second)
		w.shows(1, noon.Add(61*time.Second), ahead)
		w.pass(40 * time.Second)
		w.answer(0) // to a request of the controllers
		w.pass(40 * time.Second)
		w.shows(0, noon.Add(141*time.Second), ahead)
		err := w.Ready(httptest.NewRequest(http.MethodGet, "/readyz", nil))
		expect.Error(t, ahead.String()+" ahead", err, notReady)
		now, err := w.Agreed(t.Context())
		expect.Error(t, ahead.String()+" ahead, the agreed time", err, notReady)
		expect.Equal(t, ahead.String()+" ahead, the agreed time", now, w.server)
	}
}

// TestMachinesClock sets the machine's clock, suspends the machine, and has it pause: then its wall clock is late, too, and it does
// not know which clock is wrong.
func TestMachinesClock(t *testing.T) {
	for step, asks := range map[time.Duration]int{5*time.Second - 1: 0, 5 * time.Second: 1, -5 * time.Second: 1, 25 * time.Hour: 1, -time.Hour: 1} {
		w := newWorld(t, 0)
		w.shows(1, noon, 0)
		w.setMachine(step)
		w.shows(asks, noon, step)
		w.shows(0, noon, step)
	}
	w := newWorld(t, 0)
	w.shows(1, noon, 0)
	w.suspend(25 * time.Hour)
	w.shows(1, noon.Add(25*time.Hour), 0)
	sent, date := w.at, w.server
	w.suspend(8 * time.Hour) // between an answer and the end of RoundTrip
	w.note(date, sent)
	w.shows(1, noon.Add(33*time.Hour), 0)
	w.answersSet(8 * time.Hour)
	w.unknown("set forward by 8h0m0s", -8*time.Hour)
	w.setMachine(8 * time.Hour)
	w.shows(1, noon.Add(41*time.Hour), 0)
}

// TestAFailureIsExplained runs alone, because all Clocks of a process share the metrics.
func TestAFailureIsExplained(t *testing.T) {
	w := newWorld(t, time.Hour)
	gauges := func(want ...float64) {
		t.Helper()
		for i, gauge := range []prometheus.Gauge{skewKnown, skewSeconds} {
			var got dto.Metric
			if err := gauge.Write(&got); err != nil || got.GetGauge().GetValue() != want[i] {
				t.Errorf("%v, error %v, want %v", got.GetGauge().GetValue(), err, want[i])
			}
		}
	}
	fails := func() {
		t.Helper()
		before := w.asked
		w.down = errors.New("connection refused")
		_, err := w.Now(t.Context())
		_, skewErr := w.Skew(t.Context())
		_, freshErr := w.Fresh(t.Context())
		for _, err := range []error{err, skewErr, freshErr, w.Ready(httptest.NewRequest(http.MethodGet, "/readyz", nil))} {
			expect.Error(t, "error", err, "the time of the API servers is not known: connection refused")
		}
		expect.Equal(t, "questions at one moment", w.asked-before, 1)
	}
	fails()
	w.pass(time.Second)
	w.answer(0) // to a request of the controllers
	w.shows(0, noon.Add(time.Second), time.Hour)
	gauges(1, 3600)
	w.pass(2 * time.Minute)
	fails()
	gauges(0, 3600)
	expect.Equal(t, "the latest time", w.Latest(), noon.Add(2*time.Minute+time.Second))
	w.down = nil
	w.pass(time.Second)
	w.setMachine(-2 * time.Hour)
	w.shows(1, noon.Add(2*time.Minute+2*time.Second), -time.Hour)
	gauges(1, -3600)
}

// TestConcurrentCallersShareAQuestion asks a server that answers after three seconds. A caller that gives up ends neither the
// question nor the wait of the others.
func TestConcurrentCallersShareAQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, asked := &Clock{}, 0
		c.ask = func() error {
			asked++
			sent, date := c.now(), c.now().wall
			time.Sleep(3 * time.Second)
			c.note(date, sent)
			return nil
		}
		together := func(get func(context.Context) (time.Time, error)) *sync.WaitGroup {
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					if _, err := get(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			return &all
		}
		first := together(c.Now)
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Now(hasty)
		expect.True(t, errors.Is(err, context.DeadlineExceeded), "error %v", err)
		first.Wait()
		expect.Equal(t, "questions", asked, 1)
		first = together(c.Fresh)
		time.Sleep(time.Second)
		second := together(c.Fresh) // a question that was sent before does not answer them
		first.Wait()
		second.Wait()
		expect.Equal(t, "questions", asked, 3)
	})
}

func TestOfShowsTheClockOfItsCaller(t *testing.T) {
	own, none := clocktesting.NewFakePassiveClock(noon.Add(25*time.Hour)), &Clock{}
	for skew, c := range map[time.Duration]*Clock{0: Of(own), 25 * time.Hour: Apart(own, clocktesting.NewFakePassiveClock(noon))} {
		want := noon.Add(25*time.Hour - skew)
		now, err := c.Now(t.Context())
		fresh, freshErr := c.Fresh(t.Context())
		got, skewErr := c.Skew(t.Context())
		ready := c.Ready(httptest.NewRequest(http.MethodGet, "/readyz", nil)) == nil
		if err := errors.Join(err, freshErr, skewErr); err != nil || !now.Equal(want) || !fresh.Equal(want) || got != skew || ready != (skew == 0) {
			t.Errorf("it is %s, fresh %s, want %s, skew %s, ready %t, error %v", now, fresh, want, got, ready, err)
		}
	}
	expect.Equal(t, "the latest time", Of(own).Latest(), noon.Add(25*time.Hour))
	if _, err := none.Skew(t.Context()); err == nil || time.Since(none.Latest()).Abs() > time.Minute {
		t.Errorf("the zero Clock: error %v, the latest time is %s", err, none.Latest())
	}
}

// TestAnswers sends requests through a transport as the controllers do, and questions. It checks which answers tell the time, and
// that all questions share one connection, which is not that of the controllers.
func TestAnswers(t *testing.T) {
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
	expect.NoError(t, err)
	cfg.Wrap(c.Wrap)
	controllers, err := rest.HTTPClientFor(cfg)
	expect.NoError(t, err)
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
	expect.Equal(t, "number of connections, and the last question", []any{len(ports), asked()}, []any{2, "/prefix/version"})
	server.Close()
	if _, err := controllers.Get(server.URL); err == nil {
		t.Error("a request to a closed server has an answer")
	}
}

// TestQuestionEnds asks a server that does not answer.
func TestQuestionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(&rest.Config{Host: "http://api.example", Transport: roundTrip(func(request *http.Request) (*http.Response, error) {
			<-request.Context().Done()
			return nil, context.Cause(request.Context())
		})})
		expect.NoError(t, err)
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
	next := &http.Transport{}
	wrapper, ok := new(Clock).Wrap(next).(utilnet.RoundTripperWrapper)
	expect.True(t, ok && wrapper.WrappedRoundTripper() == next, "the transport inside is hidden")
}
