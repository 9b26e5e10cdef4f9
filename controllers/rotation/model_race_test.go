//go:build race

package rotation

// slower is the factor by which the model tests try less with the race detector.
const slower = 8
