package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// servingApprover returns an approver of serving certificates by the reports of Nodes, and of renewals.
func servingApprover() *approver.Reconciler {
	known := &approver.Inventory{Sources: []approver.SourceBuilder{approver.NodeSource}}
	return &approver.Reconciler{
		Rules:     []approver.Rule{approver.NodeClient(), approver.KubeletServing(approver.Serving{Inventory: known})},
		Inventory: known,
	}
}

// startCandidate runs an approver with leader election. It returns a function that stops it, and a channel that is
// closed once it leads.
func startCandidate(t *testing.T, steps clock.WithTicker) (stop func(), leads <-chan struct{}) {
	t.Helper()
	mgr := newManager(t, roleConfig(t, "approver", "kubelet-serving"), manager.Options{
		LeaderElection: true, LeaderElectionID: "csr-approver", LeaderElectionNamespace: systemNamespace, LeaderElectionReleaseOnCancel: true,
	})
	if err := (controllers.Options{Approver: servingApprover(), Clock: steps}).SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the manager stopped with %v", err)
		}
	})
	t.Cleanup(stop)
	return stop, mgr.Elected()
}

func elected(t *testing.T, leads <-chan struct{}) {
	t.Helper()
	select {
	case <-leads:
	case <-time.After(patience):
		t.Fatal("nobody is elected")
	}
}

// TestServingWaitsForAddresses creates a request two minutes before its Node has addresses, with a clock that only
// steps. So only the addresses can wake it. In between the leader is replaced, or not.
func TestServingWaitsForAddresses(t *testing.T) {
	parallel(t)
	for name, replaced := range map[string]bool{"by one leader": false, "by two leaders": true} {
		t.Run(name, func(t *testing.T) {
			steps := clocktesting.NewFakeClock(time.Now())
			stop, leads := startCandidate(t, steps)
			elected(t, leads)
			nodeName, address := fmt.Sprintf("patient-%t", replaced), map[bool]string{false: "192.0.2.150", true: "192.0.2.151"}[replaced]
			waiting := createRequest(t, kubeletOf(t, nodeName), servingRequest(t, nodeName, address))
			hasEvent(t, waiting, "NodeNotFound", nodeName)
			if replaced {
				_, leads = startCandidate(t, steps)
				stop()
				elected(t, leads)
			}
			steps.Step(2 * time.Minute)
			node := newNode(t, nodeName)
			hasEvent(t, waiting, "AddressNotPublished", nodeName)
			isPending(t, waiting)
			publish(t, node, address)
			reaches(t, waiting, csr.Approved)
		})
	}
}

// holdNodes returns cfg over a connection that does not answer about Nodes before release.
func holdNodes(cfg *rest.Config, release <-chan struct{}) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(request *http.Request) (*http.Response, error) {
			if strings.HasPrefix(request.URL.Path, "/api/v1/nodes") {
				select {
				case <-release:
				case <-request.Context().Done():
					return nil, request.Context().Err()
				}
			}
			return next.RoundTrip(request)
		})
	})
	return cfg
}

// TestColdStart starts while a source does not answer. Requests that need it are judged only once it answers, or
// after ten seconds. Renewals need no source.
func TestColdStart(t *testing.T) {
	parallel(t)
	apply(t, "kubelet-serving")
	grantGroup(t, csr.NodeGroup, mayRenewOwn)
	options := csrenv.Options{Customize: func(o *controllers.Options) { o.Approver = servingApprover() }}
	serving := func(name, address string) *request {
		newNode(t, name, address)
		return createRequest(t, kubeletOf(t, name), servingRequest(t, name, address))
	}
	t.Run("it answers late", func(t *testing.T) {
		waiting, release := serving("cold-a", "192.0.2.160"), make(chan struct{})
		startLoopAs(t, holdNodes(managerConfig(t), release), options)
		reaches(t, createRequest(t, kubeletOf(t, "cold-b"), nodeRequest(t, "cold-b")), csr.Issued)
		isPending(t, waiting)
		close(release)
		reaches(t, waiting, csr.Issued)
		for _, event := range eventsOf(t.Context(), t, waiting) {
			t.Errorf("it was judged before: %s %s", event.Reason, event.Note)
		}
	})
	t.Run("it never does", func(t *testing.T) {
		waiting := serving("cold-c", "192.0.2.161")
		start := time.Now()
		startLoopAs(t, holdNodes(managerConfig(t), t.Context().Done()), options)
		hasEvent(t, waiting, "InventoryPending", "not read yet")
		if took := time.Since(start); took < 9*time.Second {
			t.Errorf("judged after %s", took)
		}
		isPending(t, waiting)
	})
}
