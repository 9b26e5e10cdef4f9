package servertime

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	skewSeconds = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_clock_skew_seconds",
		Help: "Seconds by which the manager's clock is ahead of the API servers' clock, by their last answer; accurate to a second.",
	})
	skewKnown = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_clock_skew_known",
		Help: "1 when the time of the API servers is known. While it is 0, nothing is signed and nothing is deleted.",
	})
)

func init() { metrics.Registry.MustRegister(skewSeconds, skewKnown) }
