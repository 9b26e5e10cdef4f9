package config

import "fmt"

// Warnings returns a sentence for each setting that loads but does not do what an operator would expect of it.
func (c *Configuration) Warnings() []string {
	var warnings []string
	for _, name := range c.Retired {
		warnings = append(warnings, fmt.Sprintf("%s does nothing: no request can name kubernetes.io/legacy-unknown since "+
			"Kubernetes 1.22; remove the flag", name))
	}
	return warnings
}
