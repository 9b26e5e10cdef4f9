package controllers

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
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

// scrapeTimeout bounds how long a scrape waits for a cache that is not filled.
const scrapeTimeout = time.Second

// requestsCollector counts the requests in the caches of the running managers. It counts at each scrape, so no value
// becomes stale.
type requestsCollector struct {
	count  *prometheus.Desc
	oldest *prometheus.Desc

	mu       sync.Mutex
	managers map[*requestsSource]context.Context
}

// requestsSource is the cache of one manager. It is a Runnable of that manager, and runs on standbys too.
type requestsSource struct {
	reader  client.Reader
	clock   clock.PassiveClock
	signers map[string]bool // signers with a label of their own; all other signers share a label
}

var requests = &requestsCollector{
	count: prometheus.NewDesc("csr_requests",
		"CertificateSigningRequests by state. Approved requests are not issued yet. Every replica reports all of them.",
		[]string{"signer", "state"}, nil),
	oldest: prometheus.NewDesc("csr_requests_oldest_seconds",
		"Age of the oldest CertificateSigningRequest in that state, since its creation; 0 if there is none.",
		[]string{"signer", "state"}, nil),
	managers: map[*requestsSource]context.Context{},
}

func init() { metrics.Registry.MustRegister(requests) }

// NeedLeaderElection returns false, because a standby's cache is current too.
func (*requestsSource) NeedLeaderElection() bool { return false }

// Start includes the cache in the metrics until ctx ends.
func (s *requestsSource) Start(ctx context.Context) error {
	requests.mu.Lock()
	requests.managers[s] = ctx
	requests.mu.Unlock()
	<-ctx.Done()
	requests.mu.Lock()
	delete(requests.managers, s)
	requests.mu.Unlock()
	return nil
}

// Describe implements prometheus.Collector.
func (c *requestsCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- c.count
	descriptions <- c.oldest
}

type requestsLabels struct {
	signer string
	state  csr.State
}

type requestsTotal struct{ count, oldest float64 }

// Collect implements prometheus.Collector. It omits a cache that it cannot read, and still returns the other metrics.
func (c *requestsCollector) Collect(found chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	totals := map[requestsLabels]requestsTotal{}
	for source, ctx := range c.managers {
		if err := source.add(ctx, totals); err != nil {
			log.FromContext(ctx).Error(err, "Count requests for metrics")
		}
	}
	for labels, total := range totals {
		found <- prometheus.MustNewConstMetric(c.count, prometheus.GaugeValue, total.count, labels.signer,
			string(labels.state))
		found <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, total.oldest, labels.signer,
			string(labels.state))
	}
}

func (s *requestsSource) add(ctx context.Context, totals map[requestsLabels]requestsTotal) error {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := s.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	s.seed(totals)
	now := s.clock.Now()
	for i := range list.Items {
		obj := &list.Items[i]
		labels := requestsLabels{others, csr.StateOf(obj)}
		if s.signers[obj.Spec.SignerName] {
			labels.signer = obj.Spec.SignerName
		}
		total := totals[labels]
		total.count++
		total.oldest = max(total.oldest, now.Sub(obj.CreationTimestamp.Time).Seconds())
		totals[labels] = total
	}
	return nil
}

// seed adds a zero for each signer and state without a request.
func (s *requestsSource) seed(totals map[requestsLabels]requestsTotal) {
	for _, name := range append(slices.Collect(maps.Keys(s.signers)), others) {
		for _, state := range csr.States() {
			labels := requestsLabels{name, state}
			if _, known := totals[labels]; !known { // another manager may have counted it
				totals[labels] = requestsTotal{}
			}
		}
	}
}
