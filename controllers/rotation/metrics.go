package rotation

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// Labels are configured signers, and never an object.
var (
	phaseGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_rotation_phase",
		Help: "The phase of the signer's authority: 1 for the present phase, 0 for the others.",
	}, []string{"signer", "phase"})

	phaseSince = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_rotation_initiated_timestamp_seconds",
		Help: "When the present rotation started; 0 if there is none.",
	}, []string{"signer"})

	lastCompleted = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_rotation_last_completed_timestamp_seconds",
		Help: "When the last rotation was completed; 0 if none was.",
	}, []string{"signer"})

	outstandingUntil = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_rotation_outstanding_until_timestamp_seconds",
		Help: "When the last certificate of the retiring CA expires, at the latest; 0 if none is valid.",
	}, []string{"signer"})

	trustedGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_rotation_trusted",
		Help: "1 if all verifiers are known to trust the signing CA, or the candidate while there is one.",
	}, []string{"signer"})
)

var allGauges = []*prometheus.GaugeVec{phaseGauge, phaseSince, lastCompleted, outstandingUntil, trustedGauge}

func init() { metrics.Registry.MustRegister(rotations) }

// rotations has the metrics of all authorities that this process reconciles.
var rotations = &collector{}

// collector sets the gauges at each scrape, so that those of a removed signer or authority are gone.
type collector struct {
	mu          sync.Mutex
	authorities sync.Map // copies of *v1alpha1.SigningAuthority by name
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, one := range allGauges {
		one.Describe(descs)
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(collected chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range allGauges {
		one.Reset()
	}
	c.authorities.Range(func(_, obj any) bool { setGauges(obj.(*v1alpha1.SigningAuthority)); return true })
	for _, one := range allGauges {
		one.Collect(collected)
	}
}

func setGauges(obj *v1alpha1.SigningAuthority) {
	status, oneIf := &obj.Status, map[bool]float64{true: 1}
	seconds := func(at *metav1.Time) float64 {
		if at == nil {
			return 0
		}
		return float64(at.Unix())
	}
	began := status.InitiatedAt
	if status.Phase == v1alpha1.Completed {
		began = nil
	}
	trusted := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionTrusted)
	for _, signer := range obj.Spec.Signers {
		for _, phase := range []v1alpha1.Phase{v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed} {
			phaseGauge.WithLabelValues(signer, string(phase)).Set(oneIf[status.Phase == phase])
		}
		phaseSince.WithLabelValues(signer).Set(seconds(began))
		lastCompleted.WithLabelValues(signer).Set(seconds(status.LastCompletedTime))
		outstandingUntil.WithLabelValues(signer).Set(seconds(status.OutstandingUntil))
		trustedGauge.WithLabelValues(signer).Set(oneIf[trusted])
	}
}
