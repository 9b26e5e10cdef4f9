package config

import "fmt"

// Warnings returns a sentence for each setting that loads but does not do what an operator would expect of it. inPod says
// whether the manager runs in a Pod.
func (c *Configuration) Warnings(inPod bool) []string {
	var warnings []string
	if standard := Default().MetricsBindAddress; inPod && c.MetricsBindAddress == standard {
		warnings = append(warnings, fmt.Sprintf("metricsBindAddress is %s, the default: nothing outside of this Pod can read the "+
			"metrics; set metricsBindAddress \":8443\" and metricsSecure true, or metricsBindAddress \"0\" for no metrics", standard))
	}
	for _, name := range c.Retired {
		warnings = append(warnings, fmt.Sprintf("%s does nothing: no request can name kubernetes.io/legacy-unknown since "+
			"Kubernetes 1.22; remove the flag", name))
	}
	return warnings
}
