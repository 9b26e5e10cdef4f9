package rotation

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// Labels are configured signers, and never an object.
var (
	phaseGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_rotation_phase",
		Help: "The phase of the authority that serves the signer: 1 for the present phase, 0 for the others.",
	}, []string{"signer", "phase"})

	phaseSince = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_rotation_initiated_timestamp_seconds",
		Help: "When the rotation that is under way started, in seconds since 1970; 0 if there is none.",
	}, []string{"signer"})

	outstandingGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_rotation_outstanding_certificates",
		Help: "Certificates of the retiring CA of the authority that serves the signer which may still be valid, at most.",
	}, []string{"signer"})

	trustedGauge = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_rotation_trusted",
		Help: "Whether all verifiers are known to trust the signing CA, or the candidate while there is one: 1 if so, " +
			"0 otherwise.",
	}, []string{"signer"})
)

func init() {
	metrics.Registry.MustRegister(phaseGauge, phaseSince, outstandingGauge, trustedGauge)
}

// measure sets the gauges of the signers that obj serves.
func measure(obj *v1alpha1.SigningAuthority) {
	oneIf := func(is bool) float64 {
		if is {
			return 1
		}
		return 0
	}
	status := &obj.Status
	phases := []v1alpha1.Phase{v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed}
	trusted := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionTrusted)
	for _, signer := range obj.Spec.Signers {
		for _, phase := range phases {
			phaseGauge.WithLabelValues(signer, string(phase)).Set(oneIf(status.Phase == phase))
		}
		began := 0.0
		if status.InitiatedAt != nil && status.Phase != v1alpha1.Completed {
			began = float64(status.InitiatedAt.Unix())
		}
		phaseSince.WithLabelValues(signer).Set(began)
		outstandingGauge.WithLabelValues(signer).Set(float64(status.OutstandingOnRetiring))
		trustedGauge.WithLabelValues(signer).Set(oneIf(trusted))
	}
}
