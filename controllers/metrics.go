package controllers

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// metricsReviewsPerSecond and metricsReviewBurst bound the reviews that clients of the metrics can cause. Each unknown
// token causes one TokenReview. The answer about a scraper's token is cached for a minute, so many scrapers need few
// reviews.
const (
	metricsReviewsPerSecond = 5
	metricsReviewBurst      = 10
)

// MetricsFilter serves the metrics only to users who may get /metrics. Its reviews use a client, a rate limit and a
// connection of their own. Any pod that reaches the port can cause reviews, and they must not delay the manager's
// writes and its Lease.
func MetricsFilter(cluster *rest.Config, _ *http.Client) (metricsserver.Filter, error) {
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

// seldomSink logs at most one error a minute, because every refused client causes an error.
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

// others is the signer label of requests for signers that are not configured.
const others = "other"

var (
	requestsDesc = prometheus.NewDesc("csr_requests",
		"CertificateSigningRequests by state. Approved requests are not issued yet. Every replica reports all of them.",
		[]string{"signer", "state"}, nil)
	oldestDesc = prometheus.NewDesc("csr_requests_oldest_seconds",
		"Age of the oldest CertificateSigningRequest in that state that is not being deleted; 0 if there is none.",
		[]string{"signer", "state"}, nil)
)

// requestsCollector counts the requests in the cache of a manager at each scrape.
type requestsCollector struct {
	now     func() time.Time
	signers map[string]bool  // signers with a label of their own; all other signers share a label
	store   toolscache.Store // the cache's own objects
}

// run adds the counts to the metrics until ctx ends. If several managers run in one process, the first one counts.
func (c *requestsCollector) run(ctx context.Context) {
	if metrics.Registry.Register(c) == nil {
		defer metrics.Registry.Unregister(c)
	}
	<-ctx.Done()
}

// Describe implements prometheus.Collector.
func (*requestsCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- requestsDesc
	descriptions <- oldestDesc
}

// Collect implements prometheus.Collector. Each signer and state without a request gets a zero.
func (c *requestsCollector) Collect(found chan<- prometheus.Metric) {
	type labels struct {
		signer string
		state  csr.State
	}
	type total struct{ count, oldest float64 }
	totals := map[labels]*total{}
	for _, name := range append(slices.Collect(maps.Keys(c.signers)), others) {
		for _, state := range csr.States() {
			totals[labels{name, state}] = &total{}
		}
	}
	now := c.now()
	for _, each := range c.store.List() {
		obj := each.(*certificatesv1.CertificateSigningRequest)
		key := labels{others, csr.StateOf(obj)}
		if c.signers[obj.Spec.SignerName] {
			key.signer = obj.Spec.SignerName
		}
		of := totals[key]
		of.count++
		if obj.DeletionTimestamp != nil { // no controller acts on it any more
			continue
		}
		of.oldest = max(of.oldest, now.Sub(obj.CreationTimestamp.Time).Seconds())
	}
	for key, of := range totals {
		state := string(key.state)
		found <- prometheus.MustNewConstMetric(requestsDesc, prometheus.GaugeValue, of.count, key.signer, state)
		found <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, of.oldest, key.signer, state)
	}
}
