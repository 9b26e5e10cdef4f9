//go:build !race

package cluster

const race = false
