package controllers

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

// Reviews that readers of the metrics may cause: each unknown token is one TokenReview, whoever sends it. A scraper's own
// token is remembered for a minute, so that many scrapers need few.
const (
	metricsReviewsPerSecond = 5
	metricsReviewBurst      = 10
)

// MetricsFilter lets only those read the metrics who may get /metrics. It asks the API server by a client of its own, with
// a limit of its own and on a connection of its own: any pod that reaches the port can make it ask, and must not slow down
// the writes and the Lease of the manager.
func MetricsFilter(cluster *rest.Config, _ *http.Client) (metricsserver.Filter, error) {
	reviewer := rest.CopyConfig(cluster)
	reviewer.RateLimiter, reviewer.QPS, reviewer.Burst = nil, metricsReviewsPerSecond, metricsReviewBurst
	// client-go shares a connection between configurations with the same dialer.
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
		return filter(log.WithSink(&seldomSink{LogSink: log.GetSink(), often: &rate.Sometimes{Interval: time.Minute}}), handler)
	}, nil
}

// seldomSink logs at most one error a minute: a client that is refused costs no line each.
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
