package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// TestAHostileNodeDelaysNobody has a node that keeps five hundred requests pending. It claims the addresses of all
// other nodes and gives them up again, twenty times a second. The certificates of the others must take as long as
// under a comparable load. That load has the same number of requests for an unknown signer, and addresses that change
// but are not requested. So the cost for the API server is in both.
func TestAHostileNodeDelaysNobody(t *testing.T) {
	parallel(t)
	startServingManager(t, "")
	const nodes = 50
	var theirs, nobodys []string
	for i := range nodes {
		theirs, nobodys = append(theirs, fmt.Sprintf("198.51.100.%d", i)), append(nobodys, fmt.Sprintf("198.51.100.%d", 100+i))
		newNode(t, fmt.Sprintf("honest-%d", i), theirs[i])
	}
	hostile := newNode(t, "x-hostile") // of two Nodes of the same second, the name decides
	honest := func(string) []time.Duration {
		return timed(t, func(i int) (string, *request) {
			node := fmt.Sprintf("honest-%d", i%nodes)
			return node, servingRequest(t, node, theirs[i%nodes])
		})
	}
	ask := func(label, signer string) {
		obj := servingRequest(t, hostile.Name, theirs[0], theirs[1])
		obj.Labels, obj.Spec.SignerName = map[string]string{label: "yes"}, signer
		keepWaiting(t, 500, hostile.Name, obj)
	}
	flip := func(addresses []string) (end func()) {
		var running sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		flips := 0
		running.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond) // a faster rate would measure the API server, which limits it
			defer tick.Stop()
			for ; ctx.Err() == nil; flips++ {
				<-tick.C
				publish(t, hostile, [][]string{addresses, {"198.51.100.250"}}[flips%2]...)
			}
		})
		return func() {
			stop()
			running.Wait()
			if t.Logf("%d flips", flips); flips < 5 { // a fast machine measures for less than a second
				t.Errorf("%d flips prove nothing", flips)
			}
		}
	}
	ask("not-ours", "example.com/not-ours")
	delaysNobody(t, honest, func() func() { return flip(nobodys) }, func() func() {
		ask(waits, certificatesv1.KubeletServingSignerName)
		return flip(theirs)
	})
}
