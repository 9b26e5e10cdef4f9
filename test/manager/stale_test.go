package manager

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestStaleInventoryHoldsServingApprovalsUp cuts the watches of Nodes, Services and EndpointSlices while the manager
// runs, and fails new lists and watches. The copies stay in use for 20 seconds, but not after a refusal. Then nothing is
// approved until everything was read again.
func TestStaleInventoryHoldsServingApprovalsUp(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	for name, test := range map[string]struct {
		resource string
		fails    faults.Action
		keeps    bool // for 20 seconds
	}{
		"overloaded": {"nodes", faults.Answer(429).RetryAfter(time.Second), true},
		"refused":    {"services", faults.Answer(403), false},
		"gone":       {"endpointslices", faults.Answer(404), false},
	} {
		t.Run(name, func(t *testing.T) {
			followed := []string{test.resource}
			proxy := kit.ThroughFaults(t, kit.ServiceAccountConfig(t),
				faults.Rule{Verbs: faults.Watch, Resources: followed, Do: faults.Cut(3 * time.Second)})
			p := startServingManagerAs(t, proxy.Config, "")
			node := "stale-" + name
			kit.NewNode(t, node, "192.0.2.60")
			kit.Reaches(t, asksFor(t, node, "192.0.2.60"), csr.Issued)

			proxy.Use(faults.Rule{Verbs: []string{"list", "watch"}, Resources: followed, Do: test.fails})
			if test.keeps {
				kit.Eventually(t, "the manager reads in vain", func(context.Context) error {
					if proxy.Applied()[0] == 0 {
						return errors.New("it has not yet")
					}
					return nil
				})
				kit.Reaches(t, asksFor(t, node, "192.0.2.60"), csr.Issued) // its copy stays in use for now
			}
			kit.Eventually(t, "the manager says that it cannot read", func(context.Context) error {
				for line := range strings.Lines(p.Output(t)) {
					if strings.Contains(line, `"Resource is not available"`) && strings.Contains(line, `"resource":"`+test.resource+`"`) {
						return nil
					}
				}
				return errors.New("it has not yet")
			})
			waiting := asksFor(t, node, "192.0.2.60")
			kit.HasEvent(t, waiting, "InventoryUnavailable", test.resource)
			isPending(t, waiting)
			proxy.Use()
			kit.Reaches(t, waiting, csr.Issued)
		})
	}
}
