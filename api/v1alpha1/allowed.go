package v1alpha1

// Allowed are the operations that an owner can ask for in phase. Where there are none, there is nothing but to wait. The
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
	text := ""
	for i, operation := range Allowed(phase) {
		if i > 0 {
			text += ", "
		}
		text += string(operation)
	}
	if text == "" {
		return "nothing but to wait"
	}
	return text
}
