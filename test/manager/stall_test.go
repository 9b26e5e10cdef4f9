package manager

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
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

func deleteRequests(t *testing.T, label client.MatchingLabels) {
	t.Helper()
	if err := kit.Admin(t).DeleteAllOf(context.Background(), &kit.Request{}, label); err != nil {
		t.Error(err)
	}
}

// joinAll creates requests of kubelets, each once, and returns how long each took until it was issued.
func joinAll(t *testing.T, name string, count int) []time.Duration {
	t.Helper()
	label := client.MatchingLabels{"join": name}
	t.Cleanup(func() { deleteRequests(t, label) })
	payloads := make([]*kit.Request, count)
	for i := range payloads {
		payloads[i] = kit.NodeRequest(t, fmt.Sprintf("%s-%03d", name, i))
		payloads[i].GenerateName, payloads[i].Name, payloads[i].Labels = "", fmt.Sprintf("%s-%03d", name, i), label
	}
	issued := issuedRequests(t, label)
	var mu sync.Mutex
	began := map[string]time.Time{}
	var group sync.WaitGroup
	defer group.Wait()
	joiner := kit.As(t, "joiner")
	for creator := range 10 {
		group.Go(func() {
			for i := creator; i < count; i += 10 {
				mu.Lock()
				began[payloads[i].Name] = time.Now()
				mu.Unlock()
				if err := joiner.Create(t.Context(), payloads[i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended, giveUp := map[string]time.Duration{}, time.After(3*time.Minute)
	for len(ended) < count {
		select {
		case obj := <-issued:
			mu.Lock()
			ended[obj.Name] = time.Since(began[obj.Name])
			mu.Unlock()
		case <-giveUp:
			for _, obj := range payloads {
				if _, served := ended[obj.Name]; !served {
					t.Errorf("%s was not served within three minutes: %+v", obj.Name, kit.Reload(t, obj).Status.Conditions)
				}
			}
			t.FailNow()
		}
	}
	var took []time.Duration
	for _, one := range ended {
		took = append(took, one)
	}
	return took
}

// issuedRequests returns each request with label once, as soon as it is issued. It reopens a watch that ends.
func issuedRequests(t *testing.T, label client.MatchingLabels) <-chan *kit.Request {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(kit.ControlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	issued, seen := make(chan *kit.Request, 10_000), map[types.UID]bool{}
	note := func(obj any) {
		if found := obj.(*kit.Request); csr.StateOf(found) == csr.Issued && !seen[found.UID] {
			seen[found.UID] = true
			issued <- found
		}
	}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewFilteredListWatchFromClient(clientset.CertificatesV1().RESTClient(), "certificatesigningrequests", "",
			func(options *metav1.ListOptions) { options.LabelSelector = labels.FormatLabels(label) }),
		ObjectType: &kit.Request{},
		Handler:    toolscache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, obj any) { note(obj) }},
	})
	go informer.RunWithContext(t.Context())
	kit.Eventually(t, "the requests are watched", func(context.Context) error {
		if !informer.HasSynced() {
			return errors.New("they are not yet")
		}
		return nil
	})
	return issued
}
