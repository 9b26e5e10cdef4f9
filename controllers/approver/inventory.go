package approver

import (
	"errors"
	"fmt"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
)

// SourceBuilder builds a source that runs in mgr, and that calls changed. nodes reads the API server's own objects.
type SourceBuilder func(mgr manager.Manager, nodes *node.Source, changed inventory.Changed) (inventory.Source, error)

// NodeSource returns the source that trusts what nodes report about themselves.
func NodeSource(_ manager.Manager, nodes *node.Source, _ inventory.Changed) (inventory.Source, error) {
	return nodes, nil
}

// Inventory holds what is known about nodes. Until a manager runs it, a Judge that needs it returns InventoryUnavailable.
type Inventory struct {
	// Sources are in order of precedence, the strongest first.
	Sources []SourceBuilder

	cluster    *node.Source
	apiServers *node.APIServers // nil unless a Judge needs Services
	sources    inventory.Sources
	expecting  inventory.Sources      // sources except what nodes report about themselves
	leases     *nodeidentity.Leases   // nil unless a Judge needs Leases
	blocked    func(node string) bool // reports whether the block list names a node
}

// errNotRunning is the error of lookups without a manager.
var errNotRunning = errors.New("the inventory is not running")

// setup adds the sources, and whatever else judges need, to mgr. The sources share workers with the rest of the approver.
func (i *Inventory) setup(
	mgr manager.Manager, judges map[string]Judge, workers int, passed clock.PassiveClock,
	blocked func(node string) bool, changed inventory.Changed,
) error {
	log := mgr.GetLogger().WithName("inventory")
	services, leases := false, false
	for _, each := range judges {
		needServices, needLeases := needs(each)
		services, leases = services || needServices, leases || needLeases
	}
	cluster, err := node.New(mgr.GetConfig(), mgr.GetHTTPClient(), services, log)
	if err != nil {
		return fmt.Errorf("run the inventory: %w", err)
	}
	cluster.Changed = changed
	errs := []error{mgr.Add(cluster), i.setupSources(mgr, cluster, workers, changed)}
	if services {
		if len(i.sources) > 0 && len(i.expecting) == 0 {
			report.Warn(mgr.GetLogger().WithName(Name), "Kubelet serving certificates depend only on what nodes report "+
				"about themselves, so a compromised node can block another node's certificate; "+
				"add a machine, static or webhook source before node",
				"setting", "approval.inventory.sources")
		}
		i.apiServers = node.NewAPIServers(mgr.GetConfig(), cluster, log)
		i.apiServers.Changed = func() { changed("") }
		errs = append(errs, mgr.Add(i.apiServers))
	}
	if leases {
		wake := func(node string) { changed(node) }
		if i.leases, err = nodeidentity.NewLeases(mgr.GetConfig(), mgr.GetHTTPClient(), passed, log, wake); err != nil {
			return fmt.Errorf("run the inventory: %w", err)
		}
		errs = append(errs, mgr.Add(i.leases))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("run the inventory: %w", err)
	}
	i.cluster, i.blocked = cluster, blocked
	return nil
}

// setupSources adds the configured sources to mgr. Each slow source gets an equal share of the workers, and one share
// remains for requests that need no slow source.
func (i *Inventory) setupSources(mgr manager.Manager, cluster *node.Source, workers int, changed inventory.Changed) error {
	shares := 1
	for _, build := range i.Sources {
		source, err := build(mgr, cluster, changed)
		if err != nil {
			return fmt.Errorf("set up source %d: %w", len(i.sources), err)
		}
		if _, slow := source.(inventory.Slow); slow {
			shares++
		}
		i.sources = append(i.sources, source)
	}
	for n, source := range i.sources {
		if slow, is := source.(inventory.Slow); is {
			i.sources[n] = inventory.Limited(slow, workers/shares)
		}
		if source != inventory.Source(cluster) {
			i.expecting = append(i.expecting, i.sources[n])
		}
	}
	return nil
}
