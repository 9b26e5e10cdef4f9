// Package metric declares the manager's metrics. Each is registered where it is declared, in controller-runtime's registry. Names
// and texts must be literals: docs/reference/metrics.md is generated from the declarations.
package metric

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Latency has the bounds, in seconds, of histograms of the time that a node waits. They extend beyond the quarter of an
// hour after which a kubelet creates another request (client-go util/certificate, certificateWaitTimeout).
var Latency = []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}

// Counter returns a new counter. Its name ends in _total.
func Counter(name, help string, labels ...string) *prometheus.CounterVec {
	return registered(prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

// Gauge returns a new gauge.
func Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return registered(prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

// Histogram returns a new histogram with those upper bounds.
func Histogram(name, help string, bounds []float64, labels ...string) *prometheus.HistogramVec {
	return registered(prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: bounds}, labels))
}

func registered[T prometheus.Collector](made T) T {
	metrics.Registry.MustRegister(made)
	return made
}
