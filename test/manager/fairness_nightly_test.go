//go:build nightly

package manager

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
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// waiting labels requests that wait until the end of a load.
var waiting = client.MatchingLabels{"waits": "yes"}

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
		kit.NoError(t, clientcmd.WriteToFile(*config, file))
		args.Set("authorization-mode", "Node", "RBAC", "Webhook").
			Set("authorization-webhook-version", "v1").Set("authorization-webhook-config-file", file)
	})
	return hanging
}

// renew has fifty nodes renew, one after the other. None may wait for others.
func renew(t *testing.T) {
	t.Helper()
	l := newLoad(t, client.MatchingLabels{"timed": "yes"})
	for i := range 50 {
		node := fmt.Sprint("renews-", i)
		kit.NoError(t, l.add(t.Context(), kit.KubeletOf(t, node), kit.NodeRequest(t, node)))
		if longest := l.longest(t); longest > 5*time.Second { // a request that waits for a stalled worker takes ten
			t.Fatalf("a renewal took %s", longest)
		}
	}
}

// TestAStalledSourceDelaysNoRenewal has a source that holds every lookup for ten seconds while a thousand requests of
// more nodes than it has places wait for it. Renewals need no source.
func TestAStalledSourceDelaysNoRenewal(t *testing.T) {
	kit.Parallel(t)
	server, ca := inventoryServer(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a disconnected client noticed
		<-r.Context().Done()
	})
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	startServing(t, fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 10s}}, {node: {}}]", server.URL, ca))
	kit.HasEvent(t, asksFor(t, "stalled", "192.0.2.200"), "InventoryUnavailable", "ask webhook: context deadline exceeded")
	for i := range 50 {
		node := fmt.Sprintf("stalled-%d", i)
		keepWaiting(t, kit.KubeletOf(t, node), 20, kit.ServingRequest(t, node, "192.0.2.200"))
	}
	renew(t)
}

// TestHangingReviewsOfOneRequesterDelayNobody has an authorizer of the API server that hangs for one bootstrapper, who
// asks for certificates of 2,000 nodes. At most half of the workers wait for its reviews.
func TestHangingReviewsOfOneRequesterDelayNobody(t *testing.T) {
	kit.Parallel(t)
	const flooder = "bootstrapper"
	hanging := hangingReviews(t, flooder)
	startServing(t, "")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	kit.GrantGroup(t, "flooders", kit.MayCreate)
	var all []*kit.Request
	for i := range 2000 {
		all = append(all, kit.NodeRequest(t, fmt.Sprintf("joins-%d", i)))
	}
	keepWaiting(t, kit.Impersonate(t, flooder, "flooders"), 1, all...)
	most := int32(controllers.DefaultConcurrency.Approver / 2)
	kit.Eventually(t, "some reviews hang", func(context.Context) error {
		got := hanging.Load() // more hang that have just ended
		return kit.OrError(got >= 1 && got <= most, "%d do, want 1 to %d", got, most)
	})
	renew(t)
}

// keepWaiting creates each of objs count times as c's user, with ten at once. They wait until the end of the load.
func keepWaiting(t *testing.T, c client.Client, count int, objs ...*kit.Request) {
	t.Helper()
	deletesRequests(t, waiting)
	var creators errgroup.Group
	creators.SetLimit(10)
	for _, obj := range objs {
		obj.Labels = waiting
		for range count {
			creators.Go(func() error { return c.Create(t.Context(), obj.DeepCopy()) })
		}
	}
	kit.NoError(t, creators.Wait())
}

// TestAHostileNodeDelaysNobody has a node that keeps five hundred requests pending. Twenty times a second it reports the
// addresses that they name, and no longer reports them. A second node, which is on the block list, does the same with the
// addresses of all other nodes, which get serving certificates meanwhile.
func TestAHostileNodeDelaysNobody(t *testing.T) {
	kit.Parallel(t)
	kit.BlockList(t, "x-liar\n")
	kit.Apply(t, "node-block-list")
	startWithBlockList(t)
	const nodes = 50
	var theirs, own []string
	for i := range nodes {
		theirs, own = append(theirs, fmt.Sprintf("198.51.100.%d", i)), append(own, fmt.Sprintf("198.51.100.%d", nodes+i))
		kit.NewNode(t, fmt.Sprintf("honest-%d", i), theirs[i])
	}
	hostile, liar := kit.NewNode(t, "x-hostile"), kit.NewNode(t, "x-liar")
	keepWaiting(t, kit.KubeletOf(t, hostile.Name), 500, kit.ServingRequest(t, hostile.Name, own[0], own[1], theirs[0])) // for the last one
	flips := atomic.Int32{}
	defer every(t, 50*time.Millisecond, func(i int) error { // a faster rate would measure the API server, which limits it
		kit.Publish(t, hostile, [][]string{own, {"198.51.100.250"}}[i%2]...)
		kit.Publish(t, liar, [][]string{theirs, {"198.51.100.251"}}[i%2]...)
		flips.Add(1)
		return nil
	})()
	l := newLoad(t, client.MatchingLabels{"timed": "yes"})
	for i := 0; i < 10*nodes && (i < nodes || flips.Load() < 20); i++ { // a fast machine needs several rounds
		node := fmt.Sprintf("honest-%d", i%nodes)
		kit.NoError(t, l.add(t.Context(), kit.KubeletOf(t, node), kit.ServingRequest(t, node, theirs[i%nodes])))
		if longest := l.longest(t); longest > 5*time.Second {
			t.Fatalf("a request took %s", longest)
		}
	}
	if flips.Load() < 20 {
		t.Errorf("%d flips prove nothing", flips.Load())
	}
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
	kit.IsIn(t, first, csr.Pending)
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
	kit.IsIn(t, first, csr.Pending)
}

// TestAnswersAfter25Seconds delays every call almost as long as an admission webhook may.
func TestAnswersAfter25Seconds(t *testing.T) {
	kit.Parallel(t)
	joinSlowly(t, 10, 25*time.Second, 115*time.Second)
}

// TestHungDeleteHoldsUpNoOther has one hanging delete of the cleaner: the others continue, and it is retried.
func TestHungDeleteHoldsUpNoOther(t *testing.T) {
	kit.Alone(t)
	proxy := kit.ThroughFaults(t, kit.RoleConfig(t, "cleaner"),
		faults.Rule{Verbs: []string{"delete"}, Resources: []string{"certificatesigningrequests"}, Times: 1, Do: faults.Hang()})
	const due = 20
	for range due {
		kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "due", signerName("example.com/foreign")))
	}
	config := kit.Configure(t, `controllers: [csrcleaner]
cleaning: {signers: [{name: example.com/foreign, retention: {pending: 2s}}]}
`)
	kit.StartManager(t, proxy.Config, config, "--leader-elect=false")
	atMost := func(most int) {
		t.Helper()
		kit.Within(t, 90*time.Second, "due requests are deleted", func(ctx context.Context) error {
			left := &certificatesv1.CertificateSigningRequestList{}
			err := kit.Admin(t).List(ctx, left)
			return errors.Join(err, kit.OrError(len(left.Items) <= most, "%d are left", len(left.Items)))
		})
	}
	atMost(1)
	// The hanging delete ends after 45 seconds, and is then repeated. All others come before that.
	var hung string
	others := map[string]bool{}
	for _, call := range proxy.Calls() {
		if call.Verb != "delete" {
			continue
		}
		if call.Fault == "Hang" {
			hung = call.Name
		} else if call.Name == hung {
			break
		} else {
			others[call.Name] = true
		}
	}
	if want := due - 1; hung == "" || len(others) != want {
		t.Errorf("%d others were deleted while the delete of %q hung, want %d", len(others), hung, want)
	}
	atMost(0)
}
