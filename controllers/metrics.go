package controllers

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

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
