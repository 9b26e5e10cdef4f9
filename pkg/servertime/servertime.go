// Package servertime provides the time of the API servers, which stamp every object. An age that is computed with
// another clock is wrong by the difference between the two clocks.
package servertime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

const (
	// MaxSkew is the skew that certificates tolerate: they are valid from five minutes before they are issued.
	MaxSkew = 5 * time.Minute

	// roundEvery is the pause between measurements. roundSkewed is the pause while the skew stops signing. roundRetry
	// is the pause while the time is unknown.
	roundEvery  = time.Minute
	roundSkewed = 5 * time.Second
	roundRetry  = time.Second
	// perRound is the number of new connections per measurement. A load balancer spreads them over the API servers.
	perRound = 5
	// rounds is the number of measurements that count. The earliest of their readings counts, so an API server still
	// counts if it did not answer in the last round.
	rounds = 5
	// maxStep is the largest accepted difference between the wall clock and the monotonic clock. Beyond it, readings
	// are useless: the clock was set, or the machine was suspended.
	maxStep = 5 * time.Second
)

var (
	skewSeconds = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_clock_skew_seconds",
		Help: "Seconds by which the manager's clock is ahead of the API servers' clocks, " +
			"measured against the clock that is most behind; accurate to a second.",
	})
	skewKnown = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_clock_skew_known",
		Help: "1 when the time of the API servers is known. While it is 0, nothing is signed and nothing is deleted.",
	})
)

func init() { metrics.Registry.MustRegister(skewSeconds, skewKnown) }

// Clock provides the time of the API servers: the manager's clock plus the offset that Date headers show. If API
// servers differ, it follows the one that is most behind, so that no age is too high. The zero value knows no time.
// Clock is safe for concurrent use.
type Clock struct {
	machine, shown clock.PassiveClock // if shown is set, it is the time, and nothing is measured
	ask            func(context.Context) (time.Time, error)
	newest         func(context.Context) (string, error) // the newest resourceVersion of all requests
	now            func() instant
	log            logr.Logger
	again          chan struct{} // requests a measurement at once

	// spread is the pause between the requests of a round.
	spread time.Duration

	mu       sync.Mutex
	readings []reading // of the last rounds
	err      error     // why the last measurement failed

	refreshing sync.Mutex // held while Refresh measures
	refreshed  refreshed
}

// instant is one moment by the wall clock and by the monotonic clock of the machine.
type instant struct {
	wall time.Time
	mono time.Duration
}

// reading is the time in a response of an API server, which has cut off the fraction of a second. The clock of the
// server was at server or later when the response arrived, and before latest when the request was sent.
type reading struct {
	server, latest time.Time
	at, sent       instant
}

// upper returns the latest time that the clock of the server can show now.
func (r reading) upper(now instant) time.Time { return r.latest.Add(now.mono - r.sent.mono) }

// errUnknown is the error before the first measurement.
var errUnknown = errors.New("it has not been measured yet")

// Of returns a Clock that shows local and measures nothing.
func Of(local clock.PassiveClock) *Clock { return Apart(local, local) }

// Apart returns a Clock that shows server, on a machine with the clock local. It measures nothing.
func Apart(local, server clock.PassiveClock) *Clock { return &Clock{machine: local, shown: server} }

// New returns a Clock that measures with requests to the API servers of cfg while it runs.
func New(cfg *rest.Config, log logr.Logger) (*Clock, error) {
	ask, err := dateOf(cfg)
	if err != nil {
		return nil, fmt.Errorf("measure the time of the API servers: %w", err)
	}
	newest, err := newestOf(cfg)
	if err != nil {
		return nil, fmt.Errorf("measure the time of the API servers: %w", err)
	}
	real := clock.RealClock{}
	start := real.Now()
	return &Clock{
		ask: ask, newest: newest, log: log, again: make(chan struct{}, 1), spread: time.Second / perRound,
		now: func() instant { return instant{real.Now().Round(0), real.Since(start)} },
	}, nil
}

// Now returns the time of the API servers. While that is unknown, it returns the time of the machine.
func (c *Clock) Now() time.Time {
	if c.shown != nil {
		return c.shown.Now()
	}
	now := c.instant()
	if server, err := c.server(now); err == nil {
		return server
	}
	return now.wall
}

// Since returns the age of an object that an API server stamped with t.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Skew returns how far the machine's clock is ahead of the API servers' clocks. It is negative if the machine's clock
// is behind. An error says why the skew is unknown.
func (c *Clock) Skew() (time.Duration, error) {
	if c.shown != nil {
		return c.machine.Now().Sub(c.shown.Now()), nil
	}
	now := c.instant()
	server, err := c.server(now)
	if err != nil {
		return 0, err
	}
	return now.wall.Sub(server), nil
}

// Refresh measures the time of the API servers, unless that was done after they stored version, the resourceVersion of a
// CertificateSigningRequest. Call it before an age decides about that request: if an API server's clock was set back since
// the last measurement, a new request seems to be old. All requests that are already stored share one measurement, because
// clients may compare resourceVersions (KEP-5504). An error says that no API server has answered. While the time is unknown,
// Refresh does nothing.
func (c *Clock) Refresh(ctx context.Context, version string) error {
	if c.shown != nil {
		return nil
	}
	if done, err := c.refreshedSince(version); done {
		return err
	}
	c.refreshing.Lock()
	defer c.refreshing.Unlock()
	if done, err := c.refreshedSince(version); done { // another worker has measured meanwhile
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	newest, err := c.newest(ctx) // first: the measurement must come later
	var taken []reading
	if err == nil {
		taken, err = c.take(ctx, 0)
	}
	now := c.instant()
	if len(taken) > 0 {
		c.follow(combine(taken), now)
		err = nil
	} else {
		err = fmt.Errorf("measure the time of the API servers: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshed = refreshed{version: newest, err: err, at: now.mono}
	return err
}

// refreshed is the result of the last measurement of Refresh.
type refreshed struct {
	version string // the newest one before the measurement
	err     error
	at      time.Duration // by the monotonic clock
}

// refreshedSince reports whether Refresh has nothing to do: it has measured after the API servers stored version, it has just failed, or
// the time is unknown. A restored etcd has lower resourceVersions, so a measurement counts for as long as any other.
func (c *Clock) refreshedSince(version string) (done bool, err error) {
	now := c.instant()
	if _, err := c.server(now); err != nil {
		return true, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	age := now.mono - c.refreshed.at
	if c.refreshed.err != nil {
		return age < roundRetry, c.refreshed.err
	}
	order, err := resourceversion.CompareResourceVersion(version, c.refreshed.version)
	return err == nil && order <= 0 && age < roundEvery, nil
}

// follow adds the reading to the others if its API server is behind all of theirs.
func (c *Clock) follow(added reading, now instant) {
	if earliest, err := c.server(now); err == nil && added.upper(now).Before(earliest) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.keep(added)
		c.measureAgain() // and report the skew
	}
}

// keep adds the reading to the others. The oldest one makes room.
func (c *Clock) keep(added reading) {
	earlier := c.readings[max(0, len(c.readings)-rounds+1):]
	c.readings = append(slices.Clone(earlier), added)
}

func (c *Clock) instant() instant {
	if c.now == nil {
		return instant{wall: clock.RealClock{}.Now()}
	}
	return c.now()
}

// server returns the time of the API server that is most behind.
func (c *Clock) server(now instant) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var earliest time.Time
	for _, one := range c.readings {
		passed := now.mono - one.at.mono
		if (now.wall.Sub(one.at.wall) - passed).Abs() > maxStep {
			c.readings, c.err = nil, errors.New("the clock of this machine was set, or the machine was suspended")
			c.measureAgain()
			break
		}
		if server := one.server.Add(passed); earliest.IsZero() || server.Before(earliest) {
			earliest = server
		}
	}
	if len(c.readings) == 0 {
		return time.Time{}, fmt.Errorf("the time of the API servers is not known: %w", cmp.Or(c.err, errUnknown))
	}
	return earliest, nil
}

// measureAgain requests a measurement at once.
func (c *Clock) measureAgain() {
	select {
	case c.again <- struct{}{}:
	default: // already requested
	}
}

// Ready returns an error if the skew is unknown or too large. It is a readiness check.
func (c *Clock) Ready(*http.Request) error {
	skew, err := c.Skew()
	if err == nil && skew.Abs() > MaxSkew {
		return errors.New(Sentence(skew))
	}
	return err
}

// Sentence describes the skew and says what to do.
func Sentence(skew time.Duration) string {
	direction := "ahead of"
	if skew < 0 {
		direction = "behind"
	}
	return fmt.Sprintf("the manager's clock is %s %s the API server's clock, and nothing is signed above %s: "+
		"synchronize the clock of the manager's node, or that of the API server",
		skew.Abs().Round(time.Second), direction, MaxSkew)
}

// NeedLeaderElection returns false: a standby must know the time when it takes over.
func (*Clock) NeedLeaderElection() bool { return false }

// Start measures until ctx ends.
func (c *Clock) Start(ctx context.Context) error {
	if c.shown != nil {
		return nil
	}
	for {
		c.measure(ctx)
		pause := roundEvery
		skew, err := c.Skew()
		c.report(skew, err)
		if err != nil {
			pause = roundRetry
		} else if skew.Abs() > MaxSkew {
			pause = roundSkewed
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-c.again:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (c *Clock) report(skew time.Duration, err error) {
	if err != nil {
		skewKnown.Set(0)
		c.log.Info("The time of the API servers is not known: nothing is signed and nothing is deleted",
			"reason", err.Error())
		return
	}
	skewKnown.Set(1)
	skewSeconds.Set(skew.Round(time.Second).Seconds())
	if skew.Abs() > MaxSkew {
		c.log.Error(nil, "The clock is skewed", "reason", "ClockSkewed", "message", Sentence(skew))
	}
}

// measure makes the reading of one round. Its requests are spread over a second, because a request just after a tick
// of the server's clock is the most exact. The first round begins with requests at once.
func (c *Clock) measure(ctx context.Context) {
	c.mu.Lock()
	first := len(c.readings) == 0
	c.mu.Unlock()
	keep := func(taken []reading, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = err
		if len(taken) == 0 {
			return // earlier readings still hold
		}
		if first {
			c.readings = nil
		}
		c.keep(combine(taken))
	}
	var taken []reading
	var err error
	if first {
		taken, err = c.take(ctx, 0)
		keep(taken, err)
	}
	more, moreErr := c.take(ctx, c.spread)
	keep(append(taken, more...), cmp.Or(moreErr, err))
}

// take asks the API servers perRound times, each time over a new connection and after the pause. It returns the readings of all
// answers, and the error of the last request that failed.
func (c *Clock) take(ctx context.Context, pause time.Duration) (taken []reading, err error) {
	for range perRound {
		if pause > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
		sent := c.now()
		server, failure := c.ask(ctx)
		if failure != nil {
			err = failure
			continue
		}
		taken = append(taken, reading{server: server, latest: server.Add(time.Second), sent: sent, at: c.now()})
	}
	return taken, err
}

// combine returns the most exact of the readings of one round, if all can be of the same clock. If API servers differ,
// it returns the earliest.
func combine(taken []reading) reading {
	now := taken[len(taken)-1].at
	lower := func(one reading) time.Time { return one.server.Add(now.mono - one.at.mono) }
	byLower := func(a, b reading) int { return lower(a).Compare(lower(b)) }
	earliest, latest := slices.MinFunc(taken, byLower), slices.MaxFunc(taken, byLower)
	for _, one := range taken {
		if lower(latest).After(one.upper(now)) {
			return earliest
		}
	}
	return latest
}

// askTimeout bounds one request. A slow response only makes ages too low.
const askTimeout = 5 * time.Second

// dateOf returns a function that requests the time of an API server of cfg, each time over a new connection.
func dateOf(cfg *rest.Config) (func(context.Context) (time.Time, error), error) {
	own := rest.CopyConfig(cfg)
	own.NextProtos = []string{"http/1.1"} // one request for each connection
	if own.Dial == nil && own.Transport == nil {
		own.Dial = (&net.Dialer{}).DialContext // client-go does not share a transport that has its own dialer
	}
	used, err := rest.HTTPClientFor(own)
	if err != nil {
		return nil, err
	}
	used.Timeout = askTimeout
	used.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	base, _, err := rest.DefaultServerUrlFor(own)
	if err != nil {
		return nil, err
	}
	address := base.JoinPath("version").String()
	return func(ctx context.Context) (time.Time, error) { return date(ctx, used, address) }, nil
}

func date(ctx context.Context, used *http.Client, address string) (time.Time, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return time.Time{}, err
	}
	request.Close = true
	response, err := used.Do(request)
	if err != nil {
		return time.Time{}, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
	_ = response.Body.Close()
	if response.StatusCode >= http.StatusInternalServerError { // perhaps from a proxy in front of the API server
		return time.Time{}, fmt.Errorf("GET %s: status %s", address, response.Status)
	}
	text := response.Header.Get("Date")
	if text == "" {
		return time.Time{}, errors.New(
			"the response of the API server has no Date header: configure the proxy in front of it to forward that header")
	}
	shown, err := http.ParseTime(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse Date header: %w", err)
	}
	return shown, nil
}

// newestOf returns a function that asks an API server of cfg for the newest resourceVersion of all CertificateSigningRequests. A
// list that can hold no request has it, and needs only the right to list.
func newestOf(cfg *rest.Config) (func(context.Context) (string, error), error) {
	used, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	list := base.JoinPath("apis", certificatesv1.GroupName, "v1", "certificatesigningrequests")
	list.RawQuery = url.Values{"fieldSelector": {"metadata.name=-"}}.Encode()
	return func(ctx context.Context) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, list.String(), nil)
		if err != nil {
			return "", err
		}
		request.Header.Set("Accept", runtime.ContentTypeJSON)
		response, err := used.Do(request)
		if err != nil {
			return "", err
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
		if err != nil {
			return "", err
		}
		if response.StatusCode != http.StatusOK {
			return "", fmt.Errorf("GET %s: status %s", list, response.Status)
		}
		var found metav1.PartialObjectMetadataList
		if err := json.Unmarshal(body, &found); err != nil {
			return "", fmt.Errorf("GET %s: %w", list, err)
		}
		return found.ResourceVersion, nil
	}, nil
}

// Shifted is the machine's clock plus the offset of an API server's clock.
type Shifted struct {
	clock.RealClock
	offset time.Duration
}

// Measure requests the time of an API server of cfg once, for a short-lived command.
func Measure(ctx context.Context, cfg *rest.Config) (Shifted, error) {
	ask, err := dateOf(cfg)
	if err != nil {
		return Shifted{}, fmt.Errorf("measure the time of the API server: %w", err)
	}
	own := clock.RealClock{}
	local := own.Now()
	shown, err := ask(ctx)
	if err != nil {
		return Shifted{}, err
	}
	// A Date header has whole seconds. An offset below the response time plus one second may be no offset at all.
	offset := shown.Sub(local)
	if took := own.Since(local); offset > -time.Second && offset < took {
		offset = 0
	}
	return Shifted{offset: offset}, nil
}

// Now returns the time of the API server.
func (s Shifted) Now() time.Time { return s.RealClock.Now().Add(s.offset) }

// Since returns the age of an object that an API server stamped with t.
func (s Shifted) Since(t time.Time) time.Duration { return s.Now().Sub(t) }
