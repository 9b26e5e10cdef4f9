//go:build nightly

package manager

import (
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestSharedBootstrapToken has a token that all nodes share, and a webhook that needs 200 ms for an answer. The holder of
// the token makes 2,000 requests for a node that the webhook does not know. Meanwhile thirty nodes join with the token,
// each within five seconds.
func TestSharedBootstrapToken(t *testing.T) {
	kit.Alone(t)
	prepareIdentity(t)
	server, ca := inventoryServer(t, knows(t, 200*time.Millisecond, func(node string) bool { return node != "flooded" }))
	startIdentityManager(t, fmt.Sprintf("nodeClient: {inventory: sources}, inventory: {sources: [{webhook: {url: %q, caFile: %q}}]}", server.URL, ca),
		"--leader-elect=false")
	token := newToken(t, "shared")
	first := token.asks(t, "flooded")
	kit.HasEvent(t, first, "NotExpected", `node "flooded"`)
	flood := kit.NodeRequest(t, "flooded")
	flood.Labels = map[string]string{waits: "yes"}
	createAll(t, token.Client, 2000, func(int) *kit.Request { return flood.DeepCopy() })
	t.Cleanup(func() { deleteRequests(t, flood.Labels) })

	label := client.MatchingLabels{"timed": "yes"}
	issued := issuedRequests(t, label)
	const nodes, bound = 30, 5 * time.Second
	start := time.Now()
	createAll(t, token.Client, nodes, func(i int) *kit.Request {
		obj := kit.NodeRequest(t, fmt.Sprintf("joins-%d", i))
		obj.Labels = label
		return obj
	})
	t.Cleanup(func() { deleteRequests(t, label) })
	for range nodes {
		select {
		case obj := <-issued:
			t.Logf("%s after %s", kit.Leaf(t, obj).Subject.CommonName, time.Since(start))
		case <-time.After(time.Until(start.Add(bound))):
			t.Fatalf("a node has not joined within %s", bound)
		}
	}
	isPending(t, first)
}
