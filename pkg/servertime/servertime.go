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
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
)

const (
	// MaxSkew is the skew that certificates tolerate: they are valid from five minutes before they are issued.
	MaxSkew = 5 * time.Minute

	// maxAge is the age at which an answer is too old to show the time.
	maxAge = time.Minute
	// maxStep is the difference between two clocks that shows that one of them was set, or that the machine was suspended.
	maxStep = 5 * time.Second
	// askAgain is the pause after a question that failed. API servers that can't answer are not asked by each caller.
	askAgain = time.Second
)

var (
	skewSeconds = metric.Gauge("csr_clock_skew_seconds",
		"Seconds by which the manager's clock is ahead of the API servers'; accurate to a second.").WithLabelValues()
	skewKnown = metric.Gauge("csr_clock_skew_known",
		"1 when the time of the API servers is known. While it is 0, nothing is signed or deleted.").WithLabelValues()
)

// Clock provides the time of the API servers: the Date header of their last answer, plus the time since that answer by
// the monotonic clock of this machine. A Date has no fractions of a second, so Clock may be late by a second and by the
// time that the answer was on its way. It is never ahead, so no age is too high. The zero value knows no time.
// Clock is safe for concurrent use.
type Clock struct {
	machine, shown clock.PassiveClock // if shown is set, it is the time, and no API server is asked
	ask            func() error       // sends a request whose answer is noted
	clocks         func() instant     // of this machine; nil means the real ones

	asking singleflight.Group
	failed struct { // the last question that failed; used only by the one that asks
		at  time.Duration // by the monotonic clock
		err error
	}
	mu   sync.Mutex
	last note
}

// instant is one moment by the wall clock and by the monotonic clock of this machine.
type instant struct {
	wall time.Time
	mono time.Duration
}

// note holds the facts of the last answer. It is as old as its request.
type note struct {
	sent instant
	// start is the API servers' time when the monotonic clock of this machine was zero. It is zero if it is unknown.
	start time.Time
	// believed is the last start at which the clock of this machine agreed, or the earliest since then. If the API servers'
	// clock was set forward, it makes every object old, so a start that is more than MaxSkew later is not believed.
	believed time.Time
}

// time returns the API servers' time at now.
func (n note) time(now instant) time.Time { return n.start.Add(now.mono) }

// holds reports whether the request was sent at after, or later, and no clock of this machine has stepped since then.
func (n note) holds(after time.Duration, now instant) bool {
	step := now.wall.Sub(n.sent.wall) - (now.mono - n.sent.mono)
	return !n.start.IsZero() && n.sent.mono >= after && step.Abs() < maxStep
}

// Of returns a Clock that shows own. It asks no API server, and has no skew.
func Of(own clock.PassiveClock) *Clock { return Apart(own, own) }

// Apart returns a Clock that shows server, on a machine with the clock own. It asks no API server.
func Apart(own, server clock.PassiveClock) *Clock { return &Clock{machine: own, shown: server} }

// Now returns the time of the API servers. It asks an API server if the last answer is older than a minute, or if the
// clock of this machine was set since then. An error says why the time is unknown. After a failed question, no API server
// is asked for a second.
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
	last, err := c.update(ctx, after)
	if forward := last.start.Sub(last.believed); err == nil && forward > MaxSkew {
		err = unknown(fmt.Errorf("the API server's clock was set forward by %s, and the clock of this machine does not agree: "+
			"synchronize both clocks", forward.Round(time.Second)))
	}
	if err != nil {
		return time.Time{}, err
	}
	return last.time(c.now()), nil
}

// Skew returns how far the clock of this machine is ahead of the API servers' clock. It is negative if the clock of this
// machine is behind. An error says why the skew is unknown.
func (c *Clock) Skew(ctx context.Context) (time.Duration, error) {
	if c.shown != nil {
		return c.machine.Now().Sub(c.shown.Now()), nil
	}
	last, err := c.update(ctx, c.now().mono-maxAge)
	if err != nil {
		return 0, err
	}
	now := c.now()
	return now.wall.Sub(last.time(now)), nil
}

// Latest returns the time of the API servers by their last answer, however old it is. Without an answer it returns the time
// of this machine. It asks no API server. It is for metrics, logs and pauses.
func (c *Clock) Latest() time.Time {
	if c.shown != nil {
		return c.shown.Now()
	}
	now, last := c.now(), c.noted()
	if last.start.IsZero() {
		return now.wall
	}
	return last.time(now)
}

// Agreed returns the time of the API servers if the clock of this machine differs from it by at most MaxSkew. Call it before
// an action that cannot be undone: if the clocks disagree, either may be wrong. An error says why no time is agreed. Then
// the time is zero if it is unknown.
func (c *Clock) Agreed(ctx context.Context) (time.Time, error) {
	now, err := c.Now(ctx)
	if err != nil {
		return time.Time{}, err
	}
	skew, err := c.Skew(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if skew.Abs() > MaxSkew {
		direction := "ahead of"
		if skew < 0 {
			direction = "behind"
		}
		err = fmt.Errorf("the manager's clock is %s %s the API server's clock, and nothing is signed above %s: "+
			"synchronize the clock of the manager's node, or that of the API server",
			skew.Abs().Round(time.Minute), direction, MaxSkew) // in minutes, so that the text is the same each time
	}
	return now, err
}

// Ready returns an error if no time is agreed. It is a readiness check.
func (c *Clock) Ready(request *http.Request) error {
	_, err := c.Agreed(request.Context())
	return err
}

// update asks an API server unless the last answer is to a request that was sent at after, or later. If another caller's
// question is on its way, update waits for its answer. That question may have been sent before after: then update asks again.
func (c *Clock) update(ctx context.Context, after time.Duration) (note, error) {
	for {
		if last := c.noted(); last.holds(after, c.now()) {
			return last, nil
		}
		answered := c.asking.DoChan("", func() (any, error) { return nil, c.askOnce() })
		select {
		case <-ctx.Done():
			return note{}, unknown(context.Cause(ctx))
		case result := <-answered:
			if result.Err != nil {
				return note{}, unknown(result.Err)
			}
		}
	}
}

func unknown(why error) error {
	return fmt.Errorf("the time of the API servers is not known: %w", why)
}

func (c *Clock) askOnce() error {
	if c.ask == nil {
		return errors.New("no API server can be asked")
	}
	if c.failed.err != nil && c.now().mono-c.failed.at < askAgain {
		return c.failed.err
	}
	err := c.ask()
	c.failed.at, c.failed.err = c.now().mono, err
	if err != nil {
		skewKnown.Set(0)
	}
	return err
}

func (c *Clock) noted() note {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// note notes an answer with that date to a request that was sent at sent.
func (c *Clock) note(date time.Time, sent instant) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := c.last; !last.start.IsZero() && sent.mono < last.sent.mono {
		return // the answer to a later request was faster
	}
	start, skew := date.Add(-now.mono), now.wall.Sub(date)
	believed := start
	if last := c.last; !last.start.IsZero() && start.After(last.believed) && skew.Abs() > MaxSkew {
		believed = last.believed
	}
	c.last = note{sent, start, believed}
	skewKnown.Set(1)
	skewSeconds.Set(skew.Round(time.Second).Seconds())
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
