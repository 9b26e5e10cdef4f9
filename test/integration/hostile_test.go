package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestAHostileNodeDelaysNobody has a node keep two thousand requests pending, claim the addresses of all others, and give
// them up again twenty times a second: the others' certificates take as long as before. That is the median: what the API
// server does for two thousand requests and for all the changes is in the p99 too, on a machine that it shares.
func TestAHostileNodeDelaysNobody(t *testing.T) {
	startServingManager(t, "")
	const nodes = 50
	var all []string
	for i := range nodes {
		all = append(all, fmt.Sprintf("198.51.100.%d", i))
		newNode(t, fmt.Sprintf("honest-%d", i), all[i])
	}
	hostile := newNode(t, "x-hostile") // of two Nodes of the same second the name decides
	honest := func(string) []time.Duration {
		return timed(t, func(i int) (string, *request) {
			node := fmt.Sprintf("honest-%d", i%nodes)
			return node, servingRequest(t, node, all[i%nodes])
		})
	}
	var flips int
	var running sync.WaitGroup
	stop := func() {}
	measured := func(name string) []time.Duration {
		took := honest(name)
		stop()
		running.Wait()
		return took
	}
	delaysNobody(t, 50, measured, func() {
		keepWaiting(t, 2000, hostile.Name, servingRequest(t, hostile.Name, all[0], all[1]))
		var ctx context.Context
		ctx, stop = context.WithCancel(t.Context())
		running.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond) // more would measure the API server, which limits it
			defer tick.Stop()
			for ; ctx.Err() == nil; flips++ {
				<-tick.C
				if flips%2 == 0 {
					publish(t, hostile, all...)
				} else {
					publish(t, hostile, "198.51.100.250")
				}
			}
		})
	})
	if t.Logf("%d flips", flips); flips < 20 {
		t.Errorf("%d flips prove nothing", flips)
	}
}
