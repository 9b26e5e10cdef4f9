//go:build nightly

package manager

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	// timedRequests are enough for a median. The benchmark measures the slowest percent.
	timedRequests = 50
	// moved is how much the median of the unaffected requests may change.
	moved = 50 * time.Millisecond
	// rounds bounds how often a measurement is repeated, because other work on the machine disturbs it.
	rounds = 3
)

// TestAStalledSourceDelaysNoRenewal has a source that holds every lookup for ten seconds while a thousand requests of
// more nodes than it has places wait for it. Renewals, which need no source, take as long as before.
func TestAStalledSourceDelaysNoRenewal(t *testing.T) {
	kit.Parallel(t)
	server, ca := inventoryServer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a disconnected client noticed
		select {
		case <-time.After(20 * time.Second): // longer than the manager waits
		case <-r.Context().Done():
		}
	})
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	startServingManager(t, fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 10s}}, {node: {}}]", server.URL, ca))

	waiting := kit.CreateRequest(t, kit.KubeletOf(t, "stalled"), kit.ServingRequest(t, "stalled", "192.0.2.200"))
	kit.HasEvent(t, waiting, "InventoryUnavailable", "ask webhook: context deadline exceeded")

	delaysNobody(t, renewals(t), noLoad, func() func() {
		for i := range 50 {
			node := fmt.Sprintf("stalled-%d", i)
			obj := kit.ServingRequest(t, node, "192.0.2.200")
			obj.Labels = map[string]string{waits: "yes"}
			keepWaiting(t, 20, node, obj)
		}
		return func() {}
	})
}

// TestHangingReviewsOfOneRequesterDelayNobody has an authorizer of the API server that hangs for one bootstrapper, who
// asks for certificates of 2,000 nodes. At most half of the workers wait for its reviews. Renewals take as long as
// before.
func TestHangingReviewsOfOneRequesterDelayNobody(t *testing.T) {
	kit.Parallel(t)
	authorizer := withReviews(t)
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	kit.GrantGroup(t, "flooders", kit.MayCreate)
	startServingManager(t, "")
	const flooder = "bootstrapper"
	authorizer.hang(flooder, nil)
	delaysNobody(t, renewals(t), noLoad, func() func() {
		createAll(t, kit.Impersonate(t, flooder), 2000, func(i int) *kit.Request {
			obj := kit.NodeRequest(t, fmt.Sprintf("joins-%d", i))
			obj.Labels = map[string]string{waits: "yes"}
			return obj
		})
		authorizer.oneHangs(t)
		return func() {
			if authorizer.hanging.Load() == 0 {
				t.Error("no review hangs any more")
			}
			kit.Eventually(t, "at most half as many reviews hang as there are workers, except those that have just ended", func(context.Context) error {
				if got, want := authorizer.hanging.Load(), int32(controllers.DefaultConcurrency.Approver/2); got > want {
					return fmt.Errorf("%d do, want %d", got, want)
				}
				return nil
			})
		}
	})
}

// renewals returns a function that measures the renewals of that many nodes.
func renewals(t *testing.T) func(name string) []time.Duration {
	return func(name string) []time.Duration {
		return timed(t, func(i int) (string, *kit.Request) {
			node := fmt.Sprintf("renews-%s-%d", name, i)
			return node, kit.NodeRequest(t, node)
		})
	}
}

// noLoad generates no load.
func noLoad() (end func()) { return func() {} }

// delaysNobody compares the duration of honest requests under the usual load and under a load that makes other
// requests wait. It repeats that until the median has changed little enough. Each load function returns a function
// that ends it. On a busy machine, whose usual median exceeds the permitted change, twice the change is permitted:
// two measurements of the same load differ that much.
func delaysNobody(t *testing.T, honest func(name string) []time.Duration, usual, load func() (end func())) {
	t.Helper()
	measure := func(name string, load func() func()) []time.Duration {
		end := load()
		took := honest(name)
		end()
		deleteRequests(t, client.MatchingLabels{waits: "yes"})
		t.Logf("%s: p50 %s, p99 %s, at most %s", name, percentile(took, 50), percentile(took, 99), slices.Max(took))
		return took
	}
	for round := range rounds {
		before := percentile(measure(fmt.Sprintf("usual-%d", round), usual), 50)
		while := measure(fmt.Sprintf("while-%d", round), load)
		if slices.Max(while) > 9*time.Second { // a request that waits for a stalled worker takes ten seconds
			t.Fatal("somebody waited for others")
		}
		if percentile(while, 50) <= before+max(moved, before) {
			return
		}
	}
	t.Errorf("the median has moved by more than %s in each of %d rounds", moved, rounds)
}

// timed returns the durations of some requests of kubelets, one after the other, from creation to certificate.
func timed(t *testing.T, next func(i int) (node string, obj *kit.Request)) []time.Duration {
	t.Helper()
	label := client.MatchingLabels{"timed": "yes"}
	issued := issuedRequests(t, label)
	defer deleteRequests(t, label)
	var took []time.Duration
	for i := range timedRequests {
		node, obj := next(i)
		obj.Labels = label
		kubelet := kit.KubeletOf(t, node)
		start := time.Now()
		if err := kubelet.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		select {
		case <-issued: // it is the only request without a certificate
		case <-time.After(kit.Patience):
			t.Fatalf("request %s is not issued", obj.Name)
		}
		took = append(took, time.Since(start))
	}
	return took
}

// keepWaiting creates obj, which has a label, count times as the kubelet of node.
func keepWaiting(t *testing.T, count int, node string, obj *kit.Request) {
	t.Helper()
	t.Cleanup(func() { deleteRequests(t, obj.Labels) })
	createAll(t, kit.KubeletOf(t, node), count, func(int) *kit.Request { return obj.DeepCopy() })
}
