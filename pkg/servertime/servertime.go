// Package servertime provides the time of the API servers, which stamp every object. An age that is computed with
// another clock is wrong by the difference between the two clocks.
package servertime

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	// MaxSkew is the skew that certificates tolerate: they are valid from five minutes before they are issued.
	MaxSkew = 5 * time.Minute

	// maxAge is the age at which an answer is too old to tell the time.
	maxAge = time.Minute
	// maxStep is the difference between two clocks that shows that one of them was set, or that the machine was suspended.
	maxStep = 5 * time.Second
	// askAgain is the pause after a question that failed.
	askAgain = time.Second
)

// errUnknown is the error of the zero Clock.
var errUnknown = errors.New("no API server can be asked")

// Clock provides the time of the API servers: the Date header of their last answer, plus the time since then by the
// monotonic clock of this machine. A Date has no fractions of a second, so Clock may be late by up to a second and the
// time that the answer took. It is never ahead, so no age is too high. The zero value knows no time.
// Clock is safe for concurrent use.
type Clock struct {
	machine, shown clock.PassiveClock          // if shown is set, it is the time, and no API server is asked
	ask            func(context.Context) error // sends a request whose answer is noted
	clocks         func() instant              // of this machine; nil means the real ones

	asking  singleflight.Group
	failure error         // of the last question; only askOnce uses it
	failed  time.Duration // when it failed, by the monotonic clock

	mu     sync.Mutex
	last   note
	jumped time.Duration // how far the API servers' clock was set forward, while this machine's clock does not agree
}

// instant is one moment by the wall clock and by the monotonic clock of this machine.
type instant struct {
	wall time.Time
	mono time.Duration
}

// note is what the last answer tells: the API servers' time at an instant. The answer is as old as its request.
type note struct {
	server time.Time
	at     instant
	sent   instant
}

func (n note) known() bool { return !n.server.IsZero() }

// time returns the API servers' time at now.
func (n note) time(now instant) time.Time { return n.server.Add(now.mono - n.at.mono) }

// holds reports whether the request was sent at after, or later, and no clock of this machine has stepped since then.
func (n note) holds(after time.Duration, now instant) bool {
	step := now.wall.Sub(n.sent.wall) - (now.mono - n.sent.mono)
	return n.known() && n.sent.mono >= after && step.Abs() < maxStep
}

// New returns a Clock that can ask the API servers of cfg. It knows the time of other answers too if the caller calls
// cfg.Wrap(clock.Wrap) before it makes clients.
func New(cfg *rest.Config) (*Clock, error) {
	c := &Clock{}
	var err error
	if c.ask, err = question(cfg, c.Wrap); err != nil {
		return nil, fmt.Errorf("ask the API servers for their time: %w", err)
	}
	return c, nil
}

// Of returns a Clock that shows own. It asks no API server, and has no skew.
func Of(own clock.PassiveClock) *Clock { return Apart(own, own) }

// Apart returns a Clock that shows server, on a machine with the clock own. It asks no API server.
func Apart(own, server clock.PassiveClock) *Clock { return &Clock{machine: own, shown: server} }

// Now returns the time of the API servers. It asks an API server if the last answer is older than a minute, or if the
// clock of this machine was set since then. An error says why the time is unknown.
//
// If the API servers' clock was set back since the last answer, new objects seem to be old. See Fresh.
func (c *Clock) Now(ctx context.Context) (time.Time, error) {
	return c.timeAfter(ctx, c.now().mono-maxAge)
}

// Fresh returns the time of the API servers by an answer to a request that was sent after the call. Call it before an age
// refuses or deletes an object. An API server stamped that object before it answered, so its clock shows no age that is
// too high, even if it was set back. Concurrent callers share one request.
func (c *Clock) Fresh(ctx context.Context) (time.Time, error) { return c.timeAfter(ctx, c.now().mono) }

func (c *Clock) timeAfter(ctx context.Context, after time.Duration) (time.Time, error) {
	if c.shown != nil {
		return c.shown.Now(), nil
	}
	if err := c.update(ctx, after); err != nil {
		return time.Time{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jumped > MaxSkew {
		return time.Time{}, unknown(fmt.Errorf("the API server's clock was set forward by %s, and the clock of this machine does not agree: "+
			"synchronize both clocks", c.jumped.Round(time.Second)))
	}
	return c.last.time(c.now()), nil
}

// Skew returns how far the clock of this machine is ahead of the API servers' clock. It is negative if the clock of this
// machine is behind. An error says why the skew is unknown.
func (c *Clock) Skew(ctx context.Context) (time.Duration, error) {
	if c.shown != nil {
		return c.machine.Now().Sub(c.shown.Now()), nil
	}
	if err := c.update(ctx, c.now().mono-maxAge); err != nil {
		return 0, err
	}
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.wall.Sub(c.last.time(now)), nil
}

// Latest returns the time of the API servers by their last answer, however old it is. Without an answer it returns the time
// of this machine. It asks no API server. It is for metrics, logs and pauses.
func (c *Clock) Latest() time.Time {
	if c.shown != nil {
		return c.shown.Now()
	}
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last.known() {
		return now.wall
	}
	return c.last.time(now)
}

// Ready returns an error if the skew is unknown or too large. It is a readiness check.
func (c *Clock) Ready(request *http.Request) error {
	skew, err := c.Skew(request.Context())
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

// update asks an API server unless the last answer is to a request that was sent at after, or later. If another caller's
// question is on its way, update waits for its answer. That question may have been sent before after: then update asks again.
func (c *Clock) update(ctx context.Context, after time.Duration) error {
	for !c.holds(after) {
		answered := c.asking.DoChan("", func() (any, error) { return nil, c.askOnce(context.WithoutCancel(ctx)) })
		select {
		case <-ctx.Done():
			return unknown(context.Cause(ctx))
		case result := <-answered:
			if result.Err != nil {
				return unknown(result.Err)
			}
		}
	}
	return nil
}

func unknown(why error) error {
	return fmt.Errorf("the time of the API servers is not known: %w", why)
}

func (c *Clock) holds(after time.Duration) bool {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.holds(after, now)
}

// askOnce asks an API server. For a second after a failure it returns that failure, so that the workers do not wait for it
// one after the other.
func (c *Clock) askOnce(ctx context.Context) error {
	if c.ask == nil {
		return errUnknown
	}
	if c.failure != nil && c.now().mono-c.failed < askAgain {
		return c.failure
	}
	if c.failure = c.ask(ctx); c.failure != nil {
		c.failed = c.now().mono
		skewKnown.Set(0)
	}
	return c.failure
}

// note notes an answer with that date to a request that was sent at sent.
func (c *Clock) note(date time.Time, sent instant) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.known() && sent.mono < c.last.sent.mono {
		return // the answer to a later request was faster
	}
	noted := note{date, now, sent}
	if c.last.known() {
		noted.server = c.later(date, now, now.mono-sent.mono)
	}
	c.last = noted
	skew := now.wall.Sub(noted.server)
	if skew.Abs() <= MaxSkew {
		c.jumped = 0 // both clocks agree
	}
	skewKnown.Set(1)
	skewSeconds.Set(skew.Round(time.Second).Seconds())
}

// later returns the API servers' time at now, when an answer with that date arrives that took so long. The last answer may
// show a later time, because it was faster or began with the second: then both are right, and the later time is more exact.
// If both cannot be right, the clock of the API server was set, and date counts.
func (c *Clock) later(date time.Time, now instant, took time.Duration) time.Time {
	expected := c.last.time(now)
	step := date.Sub(expected)
	if step <= 0 && -step <= time.Second+took {
		return expected
	}
	if step.Abs() >= maxStep {
		c.jumped = max(0, c.jumped+step)
	}
	return date
}

// started is the zero of the monotonic clock.
var started = clock.RealClock{}.Now()

func (c *Clock) now() instant {
	if c.clocks != nil {
		return c.clocks()
	}
	now := clock.RealClock{}.Now()
	return instant{wall: now.Round(0), mono: now.Sub(started)}
}
