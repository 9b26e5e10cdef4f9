//go:build nightly

package manager

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestAHostileNodeDelaysNobody has a node that keeps five hundred requests pending. Twenty times a second it reports the
// addresses that they name, and no longer reports them. A second node, which is on the block list, does the same with the
// addresses of all other nodes. The certificates of the others must take as long as under a comparable load. That load
// has the same number of requests for an unknown signer, and addresses that change but are not requested. So the cost
// for the API server is in both.
func TestAHostileNodeDelaysNobody(t *testing.T) {
	kit.Parallel(t)
	kit.BlockList(t, "x-liar\n")
	startBlockListManager(t)
	const nodes = 50
	var theirs, own, nobodys []string
	for i := range nodes {
		address := func(offset int) string { return fmt.Sprintf("198.51.100.%d", offset+i) }
		theirs, own, nobodys = append(theirs, address(0)), append(own, address(nodes)), append(nobodys, address(2*nodes))
		kit.NewNode(t, fmt.Sprintf("honest-%d", i), theirs[i])
	}
	hostile, liar := kit.NewNode(t, "x-hostile"), kit.NewNode(t, "x-liar")
	const enough = 20
	var flips atomic.Int32 // of the present load
	honest := func(string) (all []time.Duration) {
		for round := 0; round < 10 && (round == 0 || flips.Load() < enough); round++ { // a fast machine needs several rounds
			all = append(all, timed(t, func(i int) (string, *kit.Request) {
				node := fmt.Sprintf("honest-%d", i%nodes)
				return node, kit.ServingRequest(t, node, theirs[i%nodes])
			})...)
		}
		return all
	}
	ask := func(label, signer string) {
		obj := kit.ServingRequest(t, hostile.Name, own[0], own[1], theirs[0]) // they wait for the last address
		obj.Labels, obj.Spec.SignerName = map[string]string{label: "yes"}, signer
		keepWaiting(t, 500, hostile.Name, obj)
	}
	flip := func(hostiles, liars []string) (end func()) {
		var running sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		flips.Store(0)
		running.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond) // a faster rate would measure the API server, which limits it
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				kit.Publish(t, hostile, [][]string{hostiles, {"198.51.100.250"}}[flips.Load()%2]...)
				kit.Publish(t, liar, [][]string{liars, {"198.51.100.251"}}[flips.Load()%2]...)
				flips.Add(1)
			}
		})
		return func() {
			stop()
			running.Wait()
			if t.Logf("%d flips", flips.Load()); flips.Load() < enough {
				t.Errorf("%d flips prove nothing", flips.Load())
			}
		}
	}
	ask("not-ours", "example.com/not-ours")
	delaysNobody(t, honest, func() func() { return flip(nobodys, nobodys) }, func() func() {
		ask(waits, certificatesv1.KubeletServingSignerName)
		return flip(own, theirs)
	})
}
