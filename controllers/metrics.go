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
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
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

// requestsCollector reports the requests in the caches of the running managers.
type requestsCollector struct {
	count  *prometheus.Desc
	oldest *prometheus.Desc

	mu       sync.Mutex
	managers map[*requestsSource]bool
}

// requestsSource counts the requests in the cache of one manager as they come and go, so a scrape costs little however
// many there are. It is a Runnable of that manager, and runs on standbys too.
type requestsSource struct {
	cache   cache.Informers
	now     func() time.Time
	signers map[string]bool // signers with a label of their own; all other signers share a label
	log     logr.Logger

	mu     sync.Mutex
	totals map[requestsLabels]requestsTotal
}

var requests = &requestsCollector{
	count: prometheus.NewDesc("csr_requests",
		"CertificateSigningRequests by state. Approved requests are not issued yet. Every replica reports all of them.",
		[]string{"signer", "state"}, nil),
	oldest: prometheus.NewDesc("csr_requests_oldest_seconds",
		"Age of the oldest CertificateSigningRequest in that state, since its creation; 0 if there is none.",
		[]string{"signer", "state"}, nil),
	managers: map[*requestsSource]bool{},
}

func init() { metrics.Registry.MustRegister(requests) }

// NeedLeaderElection returns false, because a standby's cache is current too.
func (*requestsSource) NeedLeaderElection() bool { return false }

// Start counts, and includes the counts in the metrics until ctx ends.
func (s *requestsSource) Start(ctx context.Context) error {
	objects, err := informer.FromCache(ctx, s.cache, &certificatesv1.CertificateSigningRequest{}, s.log, nil)
	if err != nil {
		return nil // ctx has ended
	}
	events, err := objects.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.add(obj, 1) },
		UpdateFunc: func(before, after any) { s.add(before, -1); s.add(after, 1) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			s.add(obj, -1)
		},
	})
	if err != nil {
		return nil // the informer has stopped because ctx has ended
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), events.HasSynced) {
		return nil
	}
	requests.mu.Lock()
	requests.managers[s] = true
	requests.mu.Unlock()
	<-ctx.Done()
	requests.mu.Lock()
	delete(requests.managers, s)
	requests.mu.Unlock()
	return nil
}

// add adds n requests like in to the counts.
func (s *requestsSource) add(in any, n int) {
	obj, ok := in.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return
	}
	labels := requestsLabels{others, csr.StateOf(obj)}
	if s.signers[obj.Spec.SignerName] {
		labels.signer = obj.Spec.SignerName
	}
	created := obj.CreationTimestamp.Unix()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.totals == nil {
		s.totals = map[requestsLabels]requestsTotal{}
	}
	if s.totals[labels] == nil {
		s.totals[labels] = requestsTotal{}
	}
	if s.totals[labels][created] += n; s.totals[labels][created] == 0 {
		delete(s.totals[labels], created)
	}
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

// requestsTotal counts requests by the second of their creation, since 1970.
type requestsTotal map[int64]int

// sum returns the count and the age of the oldest request in seconds, or zeros.
func (t requestsTotal) sum(now time.Time) (count, oldest float64) {
	for created, n := range t {
		count += float64(n)
		oldest = max(oldest, now.Sub(time.Unix(created, 0)).Seconds())
	}
	return count, oldest
}

// Collect implements prometheus.Collector.
func (c *requestsCollector) Collect(found chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts, ages := map[requestsLabels]float64{}, map[requestsLabels]float64{}
	for source := range c.managers {
		source.report(counts, ages)
	}
	for labels, count := range counts {
		found <- prometheus.MustNewConstMetric(c.count, prometheus.GaugeValue, count, labels.signer, string(labels.state))
		found <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, ages[labels], labels.signer,
			string(labels.state))
	}
}

// report adds the requests of s to counts, and their ages to ages. Each signer and state without a request gets a zero.
func (s *requestsSource) report(counts, ages map[requestsLabels]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, name := range append(slices.Collect(maps.Keys(s.signers)), others) {
		for _, state := range csr.States() {
			labels := requestsLabels{name, state}
			count, oldest := s.totals[labels].sum(now)
			counts[labels] += count
			ages[labels] = max(ages[labels], oldest)
		}
	}
}
