package ca

// Lint returns the differences between a certificate and what was issued for a request.
func (a *Authority) Lint(der []byte, issued *Issued, p Profile, req Request) []string {
	_, differences := a.paths[0].lint(der, issued, p, req)
	return differences
}
