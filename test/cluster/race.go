//go:build race

package cluster

// race reports whether the race detector watches this test.
const race = true
