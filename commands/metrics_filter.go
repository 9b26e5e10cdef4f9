package commands

import (
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// metricsReviewsPerSecond and metricsReviewBurst bound the reviews that clients of the metrics can cause. Each unknown
// token causes one TokenReview. The answer about a scraper's token is cached for a minute, so many scrapers need few
// reviews.
const (
	metricsReviewsPerSecond = 5
	metricsReviewBurst      = 10
)

// metricsFilter serves the metrics only to users who may get /metrics. Its reviews use a client, a rate limit and a
// connection of their own. Any pod that reaches the port can cause reviews, and they must not delay the manager's
// writes and its Lease.
func metricsFilter(cluster *rest.Config) (metricsserver.Filter, error) {
	reviewer := rest.CopyConfig(cluster)
	reviewer.RateLimiter, reviewer.QPS, reviewer.Burst = nil, metricsReviewsPerSecond, metricsReviewBurst
	// client-go shares a connection between configurations with the same Dial function.
	reviewer.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	reviews, err := rest.HTTPClientFor(reviewer)
	if err != nil {
		return nil, err
	}
	filter, err := filters.WithAuthenticationAndAuthorization(reviewer, reviews)
	if err != nil {
		return nil, err
	}
	return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
		return filter(log.WithSink(&seldomSink{LogSink: log.GetSink(), often: &rate.Sometimes{Interval: time.Minute}}),
			handler)
	}, nil
}

// seldomSink logs only some errors, because every refused client causes one.
type seldomSink struct {
	logr.LogSink
	often *rate.Sometimes
}

func (s *seldomSink) Error(err error, message string, keysAndValues ...any) {
	s.often.Do(func() { s.LogSink.Error(err, message, keysAndValues...) })
}

func (s *seldomSink) WithValues(keysAndValues ...any) logr.LogSink {
	return &seldomSink{s.LogSink.WithValues(keysAndValues...), s.often}
}

func (s *seldomSink) WithName(name string) logr.LogSink {
	return &seldomSink{s.LogSink.WithName(name), s.often}
}
