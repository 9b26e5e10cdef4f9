package servertime

import (
	"context"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Shifted is the machine's clock plus the offset of an API server's clock, for a short-lived command.
type Shifted struct {
	clock.RealClock
	offset time.Duration
}

// Measure asks an API server of cfg for its time.
func Measure(ctx context.Context, cfg *rest.Config) (Shifted, error) {
	asked, err := New(cfg)
	if err != nil {
		return Shifted{}, err
	}
	skew, err := asked.Skew(ctx)
	if err != nil || skew.Abs() < 2*time.Second { // a Date has whole seconds: this may be no skew at all
		return Shifted{}, err
	}
	return Shifted{offset: -skew}, nil
}

// Now returns the time of the API server.
func (s Shifted) Now() time.Time { return s.RealClock.Now().Add(s.offset) }

// Since returns the age of an object that an API server stamped with t.
func (s Shifted) Since(t time.Time) time.Duration { return s.Now().Sub(t) }
