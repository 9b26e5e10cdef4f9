package manager

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
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// startCandidate runs an approver with leader election. It returns a function that stops it, and a channel that is
// closed once it leads.
func startCandidate(t *testing.T, steps clock.WithTicker) (stop func(), leads <-chan struct{}) {
	t.Helper()
	mgr := kit.NewManager(t, kit.RoleConfig(t, "approver", "kubelet-serving"), manager.Options{
		LeaderElection: true, LeaderElectionID: "csr-approver", LeaderElectionNamespace: kit.SystemNamespace, LeaderElectionReleaseOnCancel: true,
	})
	if err := (controllers.Options{Approver: kit.ServingApprover(), Clock: steps}).SetupWithManager(mgr); err != nil {
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
	case <-time.After(kit.Patience):
		t.Fatal("nobody is elected")
	}
}

// TestServingWaitsForAddresses creates a request two minutes before its Node has addresses, with a clock that only
// steps. So only the addresses can wake it. In between the leader is replaced, or not.
func TestServingWaitsForAddresses(t *testing.T) {
	kit.Parallel(t)
	for name, replaced := range map[string]bool{"by one leader": false, "by two leaders": true} {
		t.Run(name, func(t *testing.T) {
			steps := clocktesting.NewFakeClock(time.Now())
			stop, leads := startCandidate(t, steps)
			elected(t, leads)
			nodeName, address := fmt.Sprintf("patient-%t", replaced), map[bool]string{false: "192.0.2.150", true: "192.0.2.151"}[replaced]
			waiting := kit.CreateRequest(t, kit.KubeletOf(t, nodeName), kit.ServingRequest(t, nodeName, address))
			kit.HasEvent(t, waiting, "NodeNotFound", nodeName)
			if replaced {
				_, leads = startCandidate(t, steps)
				stop()
				elected(t, leads)
			}
			steps.Step(2 * time.Minute)
			node := kit.NewNode(t, nodeName)
			kit.HasEvent(t, waiting, "AddressNotPublished", nodeName)
			isPending(t, waiting)
			kit.Publish(t, node, address)
			kit.Reaches(t, waiting, csr.Approved)
		})
	}
}

// holdNodes returns cfg over a connection that does not answer about Nodes before release.
func holdNodes(cfg *rest.Config, release <-chan struct{}) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kit.RoundTrip(func(request *http.Request) (*http.Response, error) {
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
	kit.Parallel(t)
	kit.Apply(t, "kubelet-serving")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	options := csrenv.Options{Customize: func(o *controllers.Options) { o.Approver = kit.ServingApprover() }}
	serving := func(name, address string) *kit.Request {
		kit.NewNode(t, name, address)
		return kit.CreateRequest(t, kit.KubeletOf(t, name), kit.ServingRequest(t, name, address))
	}
	t.Run("it answers late", func(t *testing.T) {
		waiting, release := serving("cold-a", "192.0.2.160"), make(chan struct{})
		kit.StartLoopAs(t, holdNodes(kit.ManagerConfig(t), release), options)
		kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, "cold-b"), kit.NodeRequest(t, "cold-b")), csr.Issued)
		isPending(t, waiting)
		close(release)
		kit.Reaches(t, waiting, csr.Issued)
		for _, event := range kit.EventsOf(t.Context(), t, waiting) {
			t.Errorf("it was judged before: %s %s", event.Reason, event.Note)
		}
	})
	t.Run("it never does", func(t *testing.T) {
		waiting := serving("cold-c", "192.0.2.161")
		start := time.Now()
		kit.StartLoopAs(t, holdNodes(kit.ManagerConfig(t), t.Context().Done()), options)
		kit.HasEvent(t, waiting, "InventoryPending", "not read yet")
		if took := time.Since(start); took < 9*time.Second {
			t.Errorf("judged after %s", took)
		}
		isPending(t, waiting)
	})
}
