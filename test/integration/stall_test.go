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
	"strings"
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

// TestAStalledSourceDelaysNoRenewal has a source that holds every lookup for ten seconds while a thousand requests
// wait for it. Renewals, which need no source, take as long as before.
func TestAStalledSourceDelaysNoRenewal(t *testing.T) {
	parallel(t)
	stalls := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a disconnected client noticed
		select {
		case <-time.After(20 * time.Second): // longer than the manager waits
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(stalls.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	write(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stalls.Certificate().Raw}))
	grantGroup(t, csr.NodeGroup, mayRenewOwn)
	startServingManager(t, fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 10s}}, {node: {}}]", stalls.URL, ca))

	waiting := createRequest(t, kubeletOf(t, "stalled"), servingRequest(t, "stalled", "192.0.2.200"))
	hasEvent(t, waiting, "InventoryPending", `source webhook of approval.inventory has not answered about node "stalled" yet`)
	hasEvent(t, waiting, "InventoryUnavailable", "ask webhook: context deadline exceeded")

	delaysNobody(t, renewals(t), noLoad, func() func() {
		for i := range 10 {
			node := fmt.Sprintf("stalled-%d", i)
			obj := servingRequest(t, node, "192.0.2.200")
			obj.Labels = map[string]string{waits: "yes"}
			keepWaiting(t, 100, node, obj)
		}
		return func() {}
	})
}

// TestAHangingAuthorizerDelaysNoRenewal has an authorizer of the API server that hangs for every user but nodes,
// while hundreds of bootstrappers wait for reviews. Renewals take as long as before.
func TestAHangingAuthorizerDelaysNoRenewal(t *testing.T) {
	parallel(t)
	hanging := make(chan struct{}, 10_000)
	var hangs atomic.Bool // set once the API server runs
	authorizer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			t.Error(err)
		}
		if !hangs.Load() || strings.HasPrefix(review.Spec.User, csr.NodeUserPrefix) {
			_ = json.NewEncoder(w).Encode(review) // the answer is no
			return
		}
		hanging <- struct{}{}
		<-r.Context().Done()
		<-hanging
	}))
	t.Cleanup(authorizer.CloseClientConnections)
	withAPIServer(t, nil, func(dir string, args *envtest.Arguments) {
		config := clientcmdapi.NewConfig()
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorizer.Certificate().Raw})
		config.Clusters["it"] = &clientcmdapi.Cluster{Server: authorizer.URL, CertificateAuthorityData: ca}
		config.Contexts["it"], config.CurrentContext = &clientcmdapi.Context{Cluster: "it"}, "it"
		file := filepath.Join(dir, "authorizer.kubeconfig")
		if err := clientcmd.WriteToFile(*config, file); err != nil {
			t.Fatal(err)
		}
		args.Set("authorization-mode", "Node", "RBAC", "Webhook").
			Set("authorization-webhook-version", "v1").Set("authorization-webhook-config-file", file)
	})
	grantGroup(t, csr.NodeGroup, mayRenewOwn)
	grantGroup(t, "flooders", mayCreate)
	startServingManager(t, "")
	hangs.Store(true)
	delaysNobody(t, renewals(t), noLoad, func() func() {
		const bootstrappers, each = 100, 5
		var creating sync.WaitGroup
		left := make(chan int, bootstrappers)
		for i := range bootstrappers {
			left <- i
		}
		close(left)
		for range 10 {
			creating.Go(func() {
				for i := range left {
					bootstrapper := impersonate(t, fmt.Sprintf("bootstrapper-%d", i))
					for n := range each {
						obj := nodeRequest(t, fmt.Sprintf("joins-%d-%d", i, n))
						obj.Labels = map[string]string{waits: "yes"}
						if err := bootstrapper.Create(t.Context(), obj); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		creating.Wait()
		eventually(t, "their reviews hang", func(context.Context) error {
			if len(hanging) == 0 {
				return errors.New("none does")
			}
			return nil
		})
		return func() {
			if len(hanging) == 0 {
				t.Error("no review hangs any more")
			}
			eventually(t, "half as many reviews hang as there are workers, but for those that have just ended", func(context.Context) error {
				if got, want := len(hanging), controllers.DefaultConcurrency.Approver/2; got > want {
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
	const creators = 10
	asking := kubeletOf(t, node)
	var done sync.WaitGroup
	for range creators {
		done.Go(func() {
			for range count / creators {
				if err := asking.Create(t.Context(), obj.DeepCopy()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
}

func deleteRequests(t *testing.T, label client.MatchingLabels) {
	t.Helper()
	if err := admin(t).DeleteAllOf(context.Background(), &request{}, label); err != nil {
		t.Error(err)
	}
}
