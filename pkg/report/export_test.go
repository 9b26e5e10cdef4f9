package report

// Kept returns the number of requests whose outcome is kept.
func (r *Reporter) Kept() int { return r.outcomes.Len() }
