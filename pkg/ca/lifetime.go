package ca

import "time"

// LifetimeOf returns the lifetime of a certificate under p for a requested lifetime, which is zero if a request sets none.
// The end of the CA may shorten it.
func (p Profile) LifetimeOf(requested time.Duration) time.Duration { return p.lifetime(requested) }
