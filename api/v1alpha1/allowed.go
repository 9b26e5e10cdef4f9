package v1alpha1

import (
	"cmp"
	"strings"
)

// Allowed returns the operations that an owner can ask for in phase. If there are none, the owner can only wait. The
// ValidatingAdmissionPolicy in config/rotation/admission says the same, which a test compares.
func Allowed(phase Phase) []Operation {
	switch phase {
	case Preparing:
		return []Operation{TrustConfirmed, RotateRollback, AdoptionAttested}
	case Prepared:
		return []Operation{RotateComplete, RotateRollback, OutstandingAccepted, AdoptionAttested}
	case Completed:
		return []Operation{RotateStart, AdoptionAttested}
	default:
		return nil
	}
}

// AllowedText says so to people.
func AllowedText(phase Phase) string {
	var names []string
	for _, operation := range Allowed(phase) {
		names = append(names, string(operation))
	}
	return cmp.Or(strings.Join(names, ", "), "nothing but to wait")
}
