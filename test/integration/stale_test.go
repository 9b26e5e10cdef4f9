package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

// TestStaleInventoryHoldsServingApprovalsUp cuts the watches of Nodes, Services and EndpointSlices while the manager
// runs, and refuses new ones. client-go does not report the refusals. The old copy is not used until everything has
// been read again.
func TestStaleInventoryHoldsServingApprovalsUp(t *testing.T) {
	unshared(t)
	installRBAC(t)
	for name, resource := range map[string]string{"nodes": "nodes", "services": "services", "slices": "endpointslices"} {
		t.Run(name, func(t *testing.T) {
			followed := []string{resource}
			proxy := throughFaults(t, serviceAccountConfig(t),
				faults.Rule{Verbs: faults.Watch, Resources: followed, Do: faults.Cut(3 * time.Second)})
			p := startServingManagerAs(t, proxy.Config, "")
			node := "stale-" + name
			newNode(t, node, "192.0.2.60")
			reaches(t, createRequest(t, kubeletOf(t, node), servingRequest(t, node, "192.0.2.60")), csr.Issued)

			proxy.Use(faults.Rule{Verbs: []string{"list", "watch"}, Resources: followed, Do: faults.Answer(429).RetryAfter(time.Second)})
			eventually(t, "the manager notices", func(context.Context) error {
				if !strings.Contains(p.log(t), `"Resource is not available","resource":"`+resource+`"`) {
					return errors.New("it has not yet")
				}
				return nil
			})
			waiting := createRequest(t, kubeletOf(t, node), servingRequest(t, node, "192.0.2.60"))
			hasEvent(t, waiting, "InventoryUnavailable", resource)
			if got := csr.StateOf(reload(t, waiting)); got != csr.Pending {
				t.Errorf("by stale data the request is %s", got)
			}
			proxy.Use()
			reaches(t, waiting, csr.Issued)
		})
	}
}
