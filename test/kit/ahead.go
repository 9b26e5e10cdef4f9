package kit

import (
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// AheadClock is ahead of the real time. It is safe for concurrent use.
type AheadClock struct {
	clock.RealClock
	by atomic.Int64 // a time.Duration
}

// Set sets how far c is ahead.
func (c *AheadClock) Set(by time.Duration) { c.by.Store(int64(by)) }

// Now returns the time of the clock.
func (c *AheadClock) Now() time.Time { return time.Now().Add(time.Duration(c.by.Load())) }

// Since returns the time since t.
func (c *AheadClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
