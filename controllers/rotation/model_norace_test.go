//go:build !race

package rotation

const slower = 1
