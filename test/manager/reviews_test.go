//go:build nightly

package manager

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
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

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

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
	kit.Eventually(t, "a review hangs", func(context.Context) error {
		if r.hanging.Load() == 0 {
			return errors.New("none does")
		}
		return nil
	})
}

// TestNodeBlockedDuringItsReview puts a node on the block list while its review is on its way. The answer of the review
// then does not count.
func TestNodeBlockedDuringItsReview(t *testing.T) {
	kit.Parallel(t)
	authorizer := withReviews(t)
	list := kit.BlockList(t, "")
	p := startBlockListManager(t)
	release := make(chan struct{})
	const user = "bootstrapper"
	authorizer.hang(user, release)
	kit.GrantGroup(t, "flooders", kit.MayCreate)
	joiner := kit.Impersonate(t, user)
	blocked, other := kit.CreateRequest(t, joiner, kit.NodeRequest(t, "blocked")), kit.CreateRequest(t, joiner, kit.NodeRequest(t, "other"))
	authorizer.oneHangs(t)
	block(t, list, "blocked\n")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1")
	isPending(t, blocked)
	close(release)
	kit.HasEvent(t, blocked, "NodeBlocked", `node "blocked"`)
	kit.Reaches(t, other, csr.Issued)
	isPending(t, blocked)
	checkStop(t, p)
}

// percentile returns the value that this percentage of all values does not exceed.
func percentile(all []time.Duration, percent int) time.Duration {
	return slices.Sorted(slices.Values(all))[(len(all)*percent+99)/100-1]
}

// waits labels requests that a test deletes together.
const waits = "waits"

// createAll creates count requests as c's user, with ten at once.
func createAll(t *testing.T, c client.Client, count int, next func(i int) *kit.Request) {
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
