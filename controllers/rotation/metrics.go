package rotation

import (
	"slices"
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

func init() {
	for _, one := range allGauges {
		metrics.Registry.MustRegister(one)
	}
}

// gauges knows the signers whose gauges each authority has set.
type gauges struct {
	mu      sync.Mutex
	signers map[string][]string
}

// set sets the gauges of the signers that obj serves, and deletes those of signers that it no longer serves.
func (g *gauges) set(obj *v1alpha1.SigningAuthority) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.keep(obj.Name, obj.Spec.Signers)
	oneIf := func(is bool) float64 {
		if is {
			return 1
		}
		return 0
	}
	seconds := func(at *metav1.Time) float64 {
		if at == nil {
			return 0
		}
		return float64(at.Unix())
	}
	status := &obj.Status
	phases := []v1alpha1.Phase{v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed}
	trusted := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionTrusted)
	for _, signer := range obj.Spec.Signers {
		for _, phase := range phases {
			phaseGauge.WithLabelValues(signer, string(phase)).Set(oneIf(status.Phase == phase))
		}
		began := status.InitiatedAt
		if status.Phase == v1alpha1.Completed {
			began = nil
		}
		phaseSince.WithLabelValues(signer).Set(seconds(began))
		lastCompleted.WithLabelValues(signer).Set(seconds(status.LastCompletedTime))
		outstandingUntil.WithLabelValues(signer).Set(seconds(status.OutstandingUntil))
		trustedGauge.WithLabelValues(signer).Set(oneIf(trusted))
	}
}

// forget deletes the gauges of an authority that was deleted.
func (g *gauges) forget(authority string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.keep(authority, nil)
	delete(g.signers, authority)
}

// keep deletes the gauges of the authority for all signers but those. The caller holds mu.
func (g *gauges) keep(authority string, signers []string) {
	for _, signer := range g.signers[authority] {
		if !slices.Contains(signers, signer) {
			for _, one := range allGauges {
				one.DeletePartialMatch(prometheus.Labels{"signer": signer})
			}
		}
	}
	if g.signers == nil {
		g.signers = map[string][]string{}
	}
	g.signers[authority] = slices.Clone(signers)
}
