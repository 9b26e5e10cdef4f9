package integration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// timedRequests are enough for a median. The benchmark measures the slowest percent.
	timedRequests = 50
	// moved is how much the median of the unaffected requests may change.
	moved = 50 * time.Millisecond
	// rounds bounds how often a measurement is repeated, because other work on the machine disturbs it.
	rounds = 3
	// waits labels the requests that are deleted after each measurement.
	waits = "waits"
)

// TestAStalledSourceDelaysNoRenewal has a source that holds every lookup for ten seconds while a thousand requests of
// more nodes than it has places wait for it. Renewals, which need no source, take as long as before.
func TestAStalledSourceDelaysNoRenewal(t *testing.T) {
	parallel(t)
	server, ca := inventoryServer(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a disconnected client noticed
		select {
		case <-time.After(20 * time.Second): // longer than the manager waits
		case <-r.Context().Done():
		}
	})
	grantGroup(t, csr.NodeGroup, mayRenewOwn)
	startServingManager(t, fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 10s}}, {node: {}}]", server.URL, ca))

	waiting := createRequest(t, kubeletOf(t, "stalled"), servingRequest(t, "stalled", "192.0.2.200"))
	hasEvent(t, waiting, "InventoryUnavailable", "ask webhook: context deadline exceeded")

	delaysNobody(t, renewals(t), noLoad, func() func() {
		for i := range 50 {
			node := fmt.Sprintf("stalled-%d", i)
			obj := servingRequest(t, node, "192.0.2.200")
			obj.Labels = map[string]string{waits: "yes"}
			keepWaiting(t, 20, node, obj)
		}
		return func() {}
	})
}

// reviews is the authorizer of an API server. It decides what the roles do not permit.
type reviews struct {
	hanging atomic.Int32
	// decide, once it is set, decides about a user. It may take as long as ctx.
	decide atomic.Pointer[func(ctx context.Context, user string) bool]
}

// withReviews runs the test on an API server with an authorizer that permits nothing until it is told to.
func withReviews(t *testing.T) *reviews {
	t.Helper()
	it := &reviews{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			t.Error(err)
		}
		if decide := it.decide.Load(); decide != nil {
			review.Status.Allowed = (*decide)(r.Context(), review.Spec.User)
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.CloseClientConnections)
	withAPIServer(t, nil, func(dir string, args *envtest.Arguments) {
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
	return it
}

// hang makes the reviews of user hang until release is closed. Then they permit everything. All others permit nothing.
func (r *reviews) hang(user string, release <-chan struct{}) {
	decide := func(ctx context.Context, of string) bool {
		if of != user {
			return false
		}
		r.hanging.Add(1)
		defer r.hanging.Add(-1)
		select {
		case <-ctx.Done():
			return false
		case <-release:
			return true
		}
	}
	r.decide.Store(&decide)
}

// oneHangs waits until a review hangs.
func (r *reviews) oneHangs(t *testing.T) {
	t.Helper()
	eventually(t, "a review hangs", func(context.Context) error {
		if r.hanging.Load() == 0 {
			return errors.New("none does")
		}
		return nil
	})
}

// TestHangingReviewsOfOneRequesterDelayNobody has an authorizer of the API server that hangs for one bootstrapper, who
// asks for certificates of 2,000 nodes. At most half of the workers wait for its reviews. Renewals take as long as
// before.
func TestHangingReviewsOfOneRequesterDelayNobody(t *testing.T) {
	parallel(t)
	authorizer := withReviews(t)
	grantGroup(t, csr.NodeGroup, mayRenewOwn)
	grantGroup(t, "flooders", mayCreate)
	startServingManager(t, "")
	const flooder = "bootstrapper"
	authorizer.hang(flooder, nil)
	delaysNobody(t, renewals(t), noLoad, func() func() {
		createAll(t, impersonate(t, flooder), 2000, func(i int) *request {
			obj := nodeRequest(t, fmt.Sprintf("joins-%d", i))
			obj.Labels = map[string]string{waits: "yes"}
			return obj
		})
		authorizer.oneHangs(t)
		return func() {
			if authorizer.hanging.Load() == 0 {
				t.Error("no review hangs any more")
			}
			eventually(t, "at most half as many reviews hang as there are workers, except those that have just ended", func(context.Context) error {
				if got, want := authorizer.hanging.Load(), int32(controllers.DefaultConcurrency.Approver/2); got > want {
					return fmt.Errorf("%d do, want %d", got, want)
				}
				return nil
			})
		}
	})
}

// TestNodeBlockedDuringItsReview puts a node on the block list while its review is on its way. The answer of the review
// then does not count.
func TestNodeBlockedDuringItsReview(t *testing.T) {
	parallel(t)
	authorizer := withReviews(t)
	list := blockList(t, "")
	p := startBlockListManager(t)
	release := make(chan struct{})
	const user = "bootstrapper"
	authorizer.hang(user, release)
	grantGroup(t, "flooders", mayCreate)
	joiner := impersonate(t, user)
	blocked, other := createRequest(t, joiner, nodeRequest(t, "blocked")), createRequest(t, joiner, nodeRequest(t, "other"))
	authorizer.oneHangs(t)
	block(t, list, "blocked\n")
	p.answers(t, p.metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1")
	isPending(t, blocked)
	close(release)
	hasEvent(t, blocked, "NodeBlocked", `node "blocked"`)
	reaches(t, other, csr.Issued)
	isPending(t, blocked)
	checkStop(t, p)
}

// renewals returns a function that measures the renewals of that many nodes.
func renewals(t *testing.T) func(name string) []time.Duration {
	return func(name string) []time.Duration {
		return timed(t, func(i int) (string, *request) {
			node := fmt.Sprintf("renews-%s-%d", name, i)
			return node, nodeRequest(t, node)
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

// percentile returns the value that this percentage of all values does not exceed.
func percentile(all []time.Duration, percent int) time.Duration {
	return slices.Sorted(slices.Values(all))[(len(all)*percent+99)/100-1]
}

// timed returns the durations of some requests of kubelets, one after the other, from creation to certificate.
func timed(t *testing.T, next func(i int) (node string, obj *request)) []time.Duration {
	t.Helper()
	label := client.MatchingLabels{"timed": "yes"}
	issued := issuedRequests(t, label)
	defer deleteRequests(t, label)
	var took []time.Duration
	for i := range timedRequests {
		node, obj := next(i)
		obj.Labels = label
		kubelet := kubeletOf(t, node)
		start := time.Now()
		if err := kubelet.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		select {
		case <-issued: // it is the only request without a certificate
		case <-time.After(patience):
			t.Fatalf("request %s is not issued", obj.Name)
		}
		took = append(took, time.Since(start))
	}
	return took
}

// keepWaiting creates obj, which has a label, count times as the kubelet of node.
func keepWaiting(t *testing.T, count int, node string, obj *request) {
	t.Helper()
	t.Cleanup(func() { deleteRequests(t, obj.Labels) })
	createAll(t, kubeletOf(t, node), count, func(int) *request { return obj.DeepCopy() })
}

// createAll creates count requests as c's user, with ten at once.
func createAll(t *testing.T, c client.Client, count int, next func(i int) *request) {
	t.Helper()
	left := make(chan int, count)
	for i := range count {
		left <- i
	}
	close(left)
	var creating sync.WaitGroup
	for range 10 {
		creating.Go(func() {
			for i := range left {
				if err := c.Create(t.Context(), next(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	creating.Wait()
}

func deleteRequests(t *testing.T, label client.MatchingLabels) {
	t.Helper()
	if err := admin(t).DeleteAllOf(context.Background(), &request{}, label); err != nil {
		t.Error(err)
	}
}
