//go:build nightly

package manager

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

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

// waiting labels requests that wait until the end of a load.
var waiting = client.MatchingLabels{"waits": "yes"}

// percentile returns the value that this percentage of all values does not exceed.
func percentile(all []time.Duration, percent int) time.Duration {
	return slices.Sorted(slices.Values(all))[(len(all)*percent+99)/100-1]
}

// hangingReviews runs the test on an API server with an authorizer that decides what the roles do not permit. It permits
// nothing, and hangs for one user. It returns how many reviews hang.
func hangingReviews(t *testing.T, user string) *atomic.Int32 {
	t.Helper()
	hanging := &atomic.Int32{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			t.Error(err)
		}
		if review.Spec.User == user {
			hanging.Add(1)
			defer hanging.Add(-1)
			<-r.Context().Done()
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.CloseClientConnections)
	kit.WithAPIServer(t, nil, func(dir string, args *envtest.Arguments) {
		config := clientcmdapi.NewConfig()
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		config.Clusters["it"] = &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: ca}
		config.Contexts["it"], config.CurrentContext = &clientcmdapi.Context{Cluster: "it"}, "it"
		file := filepath.Join(dir, "authorizer.kubeconfig")
		if err := clientcmd.WriteToFile(*config, file); err != nil {
			t.Fatal(err)
		}
		args.Set("authorization-mode", "Node", "RBAC", "Webhook").
			Set("authorization-webhook-version", "v1").Set("authorization-webhook-config-file", file)
	})
	return hanging
}

// TestAStalledSourceDelaysNoRenewal has a source that holds every lookup for ten seconds while a thousand requests of
// more nodes than it has places wait for it. Renewals, which need no source, take as long as before.
func TestAStalledSourceDelaysNoRenewal(t *testing.T) {
	kit.Parallel(t)
	server, ca := inventoryServer(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a disconnected client noticed
		<-r.Context().Done()
	})
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	startServing(t, fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 10s}}, {node: {}}]", server.URL, ca))
	kit.HasEvent(t, asksFor(t, "stalled", "192.0.2.200"), "InventoryUnavailable", "ask webhook: context deadline exceeded")
	delaysNobody(t, renewals(t), noLoad, func() func() {
		for i := range 50 {
			node := fmt.Sprintf("stalled-%d", i)
			keepWaiting(t, kit.KubeletOf(t, node), 20, kit.ServingRequest(t, node, "192.0.2.200"))
		}
		return func() {}
	})
}

// TestHangingReviewsOfOneRequesterDelayNobody has an authorizer of the API server that hangs for one bootstrapper, who
// asks for certificates of 2,000 nodes. At most half of the workers wait for its reviews. Renewals take as long as
// before.
func TestHangingReviewsOfOneRequesterDelayNobody(t *testing.T) {
	kit.Parallel(t)
	const flooder = "bootstrapper"
	hanging := hangingReviews(t, flooder)
	startServing(t, "")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	kit.GrantGroup(t, "flooders", kit.MayCreate)
	hang := func(atLeast, atMost int32) {
		kit.Eventually(t, "some reviews hang", func(context.Context) error {
			if got := hanging.Load(); got < atLeast || got > atMost {
				return fmt.Errorf("%d do, want %d to %d", got, atLeast, atMost)
			}
			return nil
		})
	}
	delaysNobody(t, renewals(t), noLoad, func() func() {
		var all []*kit.Request
		for i := range 2000 {
			all = append(all, kit.NodeRequest(t, fmt.Sprintf("joins-%d", i)))
		}
		keepWaiting(t, kit.Impersonate(t, flooder), 1, all...)
		hang(1, math.MaxInt32)
		return func() { hang(1, int32(controllers.DefaultConcurrency.Approver/2)) } // more hang that have just ended
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
		deleteRequests(t, waiting)
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
	l := newLoad(t, client.MatchingLabels{"timed": "yes"})
	defer deleteRequests(t, l.label)
	for i := range timedRequests {
		node, obj := next(i)
		if err := l.add(t.Context(), kit.KubeletOf(t, node), obj); err != nil {
			t.Fatal(err)
		}
		l.longest(t)
	}
	return slices.Collect(maps.Values(l.waits))
}

// keepWaiting creates each of objs count times as c's user, with ten at once. They wait until the end of the load.
func keepWaiting(t *testing.T, c client.Client, count int, objs ...*kit.Request) {
	t.Helper()
	t.Cleanup(func() { deleteRequests(t, waiting) })
	var creators errgroup.Group
	creators.SetLimit(10)
	for _, obj := range objs {
		obj.Labels = waiting
		for range count {
			creators.Go(func() error { return c.Create(t.Context(), obj.DeepCopy()) })
		}
	}
	if err := creators.Wait(); err != nil {
		t.Error(err)
	}
}

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
	ask := func(signer string) {
		obj := kit.ServingRequest(t, hostile.Name, own[0], own[1], theirs[0]) // they wait for the last address
		obj.Spec.SignerName = signer
		keepWaiting(t, kit.KubeletOf(t, hostile.Name), 500, obj)
	}
	flip := func(hostiles, liars []string) (end func()) {
		flips.Store(0)
		stop := every(t, 50*time.Millisecond, func(i int) error { // a faster rate would measure the API server, which limits it
			kit.Publish(t, hostile, [][]string{hostiles, {"198.51.100.250"}}[i%2]...)
			kit.Publish(t, liar, [][]string{liars, {"198.51.100.251"}}[i%2]...)
			flips.Add(1)
			return nil
		})
		return func() {
			stop()
			if t.Logf("%d flips", flips.Load()); flips.Load() < enough {
				t.Errorf("%d flips prove nothing", flips.Load())
			}
		}
	}
	delaysNobody(t, honest, func() func() {
		ask("example.com/not-ours")
		return flip(nobodys, nobodys)
	}, func() func() {
		ask(certificatesv1.KubeletServingSignerName)
		return flip(own, theirs)
	})
}

// TestOneNodesKeyCostsLittle has a node whose key is stolen. Its requests wait, because another Node reports the last
// address of each. They cost little processor time, although the Node's status changes each second, and delay no other
// node. The flood is as large as the limits of requests and of API objects permit.
func TestOneNodesKeyCostsLittle(t *testing.T) {
	kit.Alone(t)
	const addresses, requests, each = 25_000, 3000, 900
	const quiet, measured, cores = 2 * time.Minute, time.Minute, 0.3 // of the time since the first request
	p := startServing(t, "")
	kit.NewNode(t, "flooded-other", "198.51.100.1")
	kit.Reaches(t, asksFor(t, "flooded-other", "198.51.100.1"), csr.Issued)
	var all []string
	for i := range addresses {
		all = append(all, fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250))
	}
	stolen := kit.NewNode(t, "flooded", all...)
	const contested = "198.51.100.2"
	kit.NewNode(t, "flooded-victim", contested)
	kit.Publish(t, stolen, append([]string{contested}, all...)...) // of so many, only the first count
	first := asksFor(t, stolen.Name, contested)
	kit.HasEvent(t, first, "SANContested", "Node flooded-victim")

	begin, l, other := time.Now(), newLoad(t, client.MatchingLabels{"timed": "yes"}), kit.KubeletOf(t, "flooded-other")
	endHonest := every(t, time.Second/5, func(int) error {
		return l.add(t.Context(), other, kit.ServingRequest(t, "flooded-other", "198.51.100.1"))
	})
	usual, more := stolen.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.3"}
	endChanges := every(t, time.Second, func(i int) error {
		stolen.Status.Addresses = [][]corev1.NodeAddress{append([]corev1.NodeAddress{more}, usual...), usual}[i%2]
		return kit.Admin(t).Status().Update(t.Context(), stolen)
	})
	keepWaiting(t, kit.KubeletOf(t, stolen.Name), requests, kit.ServingRequest(t, stolen.Name, append(all[:each-1:each-1], contested)...))
	t.Logf("%d requests are stored after %s", requests, time.Since(begin))
	time.Sleep(time.Until(begin.Add(quiet)))
	before, begun := p.CPUSeconds(t), time.Now()
	time.Sleep(measured)
	used := (p.CPUSeconds(t) - before) / time.Since(begun).Seconds()
	t.Logf("%.2f cores", used)
	if used > cores {
		t.Errorf("the manager uses %.2f cores, want at most %.1f", used, cores)
	}
	endHonest()
	endChanges()
	if longest := l.longest(t); longest > 5*time.Second {
		t.Errorf("a certificate of another node took %s", longest)
	}
	isPending(t, first)
	checkStop(t, p)
}

// TestSharedBootstrapToken has a token that all nodes share, and a webhook that needs 200 ms for an answer. The holder of
// the token makes 2,000 requests for a node that the webhook does not know. Meanwhile thirty nodes join with the token,
// each within five seconds.
func TestSharedBootstrapToken(t *testing.T) {
	kit.Alone(t)
	prepareIdentity(t)
	server, ca := inventoryServer(t, func(w http.ResponseWriter, r *http.Request) {
		var lookup struct{ APIVersion, Node string }
		if err := json.NewDecoder(r.Body).Decode(&lookup); err != nil {
			t.Error(err)
		}
		time.Sleep(200 * time.Millisecond)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": lookup.APIVersion, "node": lookup.Node, "known": lookup.Node != "flooded", "created": time.Now().UTC().Format(time.RFC3339),
		})
	})
	startIdentityManager(t, fmt.Sprintf("nodeClient: {inventory: sources}, inventory: {sources: [{webhook: {url: %q, caFile: %q}}]}", server.URL, ca))
	token := newToken(t, "shared")
	first := token.asks(t, "flooded")
	kit.HasEvent(t, first, "NotExpected", `node "flooded"`)
	keepWaiting(t, token.Client, 2000, kit.NodeRequest(t, "flooded"))
	if longest := joinAll(t, token.Client, 30).longest(t); longest > 5*time.Second {
		t.Errorf("a node has joined after %s", longest)
	}
	isPending(t, first)
}
