//go:build race

package rotation

// slower is how much less the model tests try with the race detector.
const slower = 8
