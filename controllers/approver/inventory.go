package approver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// SourceBuilder builds a source that runs in mgr. nodes reads the API server's own objects. The source calls changed
// with the name of each node whose entry has changed, or with an empty name for all nodes. It calls freed with names
// and addresses that a node no longer has, because other nodes may wait for them.
type SourceBuilder func(
	mgr manager.Manager, nodes *node.Source, changed func(node string), freed func([]san.SAN),
) (inventory.Source, error)

// NodeSource returns the source that trusts what nodes report about themselves.
func NodeSource(
	_ manager.Manager, nodes *node.Source, _ func(string), _ func([]san.SAN),
) (inventory.Source, error) {
	return nodes, nil
}

// Inventory holds what is known about nodes. Until a manager runs it, rules that need it return InventoryUnavailable.
type Inventory struct {
	// Sources are in order of precedence, the strongest first.
	Sources []SourceBuilder
	// WatchSilence bounds how long a watch of Nodes, Services and EndpointSlices may stay without an event; zero means
	// three minutes.
	WatchSilence time.Duration

	cluster    *node.Source
	apiServers *node.APIServers // nil unless a rule needs Services
	sources    inventory.Sources
	expecting  inventory.Sources    // sources except what nodes report about themselves
	leases     *nodeidentity.Leases // nil unless a rule needs Leases
	live       nodeidentity.Live
	serverTime *servertime.Clock
	// background holds the sources that are asked in the background.
	background []*inventory.Background
	// reading is true from the controller's start until each source has been read or has failed.
	reading atomic.Bool
}

// errNotRunning is the error of lookups without a manager.
var errNotRunning = errors.New("the inventory is not running")

// setup adds the sources, and whatever else rules need, to mgr.
func (i *Inventory) setup(
	mgr manager.Manager, rules []Rule, passed clock.PassiveClock, serverTime *servertime.Clock, wake wakeUps,
) error {
	log := mgr.GetLogger().WithName("inventory")
	services := slices.ContainsFunc(rules, func(rule Rule) bool { return rule.needsServices })
	cluster, err := node.New(mgr.GetConfig(), mgr.GetHTTPClient(),
		node.Options{Services: services, Silence: i.WatchSilence}, log)
	if err != nil {
		return err
	}
	cluster.Changed, cluster.Freed = wake.node, wake.free
	if err := errors.Join(mgr.Add(cluster), i.setupSources(mgr, cluster, passed, wake)); err != nil {
		return fmt.Errorf("run the inventory: %w", err)
	}
	if services {
		if err := i.setupServing(mgr, cluster, wake); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(rules, func(rule Rule) bool { return rule.needsLeases }) {
		if err := i.setupBootstrap(mgr, passed, wake.node); err != nil {
			return err
		}
	}
	i.cluster, i.serverTime = cluster, serverTime
	return nil
}

// setupSources adds the configured sources to mgr.
func (i *Inventory) setupSources(
	mgr manager.Manager, cluster *node.Source, passed clock.PassiveClock, wake wakeUps,
) error {
	// A change of a source's entry may end a node's claim to names and addresses that its Node reports.
	changed := func(node string) {
		wake.node(node)
		if reported, err := cluster.Reported(node); err == nil { // a source that recovers wakes all requests
			wake.free(reported)
		}
	}
	for _, build := range i.Sources {
		source, err := build(mgr, cluster, changed, wake.free)
		if err != nil {
			return err
		}
		if slow, ok := source.(inventory.Slow); ok && wake.answered != nil {
			background := inventory.NewBackground(slow, passed, func(request string) { wake.answered.add(request) })
			if err := mgr.Add(background); err != nil {
				return err
			}
			source, i.background = background, append(i.background, background)
		}
		i.sources = append(i.sources, source)
		if source != inventory.Source(cluster) {
			i.expecting = append(i.expecting, source)
		}
	}
	return nil
}

// setupServing adds to mgr what only requests for serving certificates need.
func (i *Inventory) setupServing(mgr manager.Manager, cluster *node.Source, wake wakeUps) error {
	if len(i.sources) == 1 && i.sources[0] == inventory.Source(cluster) {
		report.Warn(mgr.GetLogger().WithName(Name), "Kubelet serving certificates depend only on what nodes report "+
			"about themselves, so a compromised node can block another node's certificate; "+
			"add a machine, static or webhook source before node",
			"setting", "approval.inventory.sources")
	}
	var err error
	i.apiServers, err = node.NewAPIServers(mgr.GetConfig(), cluster, mgr.GetLogger().WithName("inventory"))
	if err != nil {
		return err
	}
	i.apiServers.Changed, i.apiServers.Freed = func() { wake.node("") }, wake.free
	if err := mgr.Add(i.apiServers); err != nil {
		return fmt.Errorf("run the inventory: %w", err)
	}
	return nil
}

// setupBootstrap adds to mgr what only requests for first certificates need.
func (i *Inventory) setupBootstrap(mgr manager.Manager, passed clock.PassiveClock, changed func(node string)) error {
	log := mgr.GetLogger().WithName("inventory")
	leases, err := nodeidentity.NewLeases(mgr.GetConfig(), mgr.GetHTTPClient(), passed, log)
	if err != nil {
		return err
	}
	tokens, err := nodeidentity.NewTokens(mgr.GetConfig(), log, changed)
	if err != nil {
		return err
	}
	leases.Changed = changed
	i.leases, i.live = leases, nodeidentity.Live{Reader: mgr.GetAPIReader()}
	if err := errors.Join(mgr.Add(leases), mgr.Add(tokens)); err != nil {
		return fmt.Errorf("run the inventory: %w", err)
	}
	return nil
}

// SetupInventory adds the Inventory to mgr for a caller that only needs decisions. Lookups wait for slow sources.
func (r *Reconciler) SetupInventory(mgr manager.Manager, passed clock.PassiveClock) error {
	wake := newWakeUps()
	wake.answered = nil
	return r.Inventory.setup(mgr, r.Rules, passed, servertime.Of(passed), wake)
}

// Tried reports whether each running source has been read or has failed.
func (i *Inventory) Tried(ctx context.Context) bool {
	err := errors.Join(i.cluster.Err(), i.apiServers.Ready())
	if i.leases != nil {
		_, _, leaseErr := i.leases.Of("")
		err = errors.Join(err, leaseErr)
	}
	for _, source := range i.sources {
		_, runs := source.(manager.Runnable)
		if _, slow := source.(inventory.Slow); runs && !slow { // other sources have nothing to read in advance
			_, sourceErr := source.Lookup(ctx, "", nil)
			err = errors.Join(err, sourceErr)
		}
	}
	return !errors.Is(err, informer.ErrNotRead)
}

// firstReadTimeout bounds how long requests wait after a start until the inventory is read. After that they report
// that it is unavailable.
const firstReadTimeout = 10 * time.Second

// firstRead returns a source that calls enqueue once each source of the inventory has been read or has failed. Until
// then lookups wait, so that a request does not report a source that is only starting.
func (i *Inventory) firstRead(enqueue func(workQueue)) source.Source {
	return source.Func(func(ctx context.Context, queue workQueue) error {
		if i.Tried(ctx) {
			return nil
		}
		i.reading.Store(true)
		go func() {
			ctx, cancel := context.WithTimeout(ctx, firstReadTimeout)
			defer cancel()
			ticker := time.NewTicker(20 * time.Millisecond)
			defer ticker.Stop()
			for !i.Tried(ctx) && ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case <-ticker.C:
				}
			}
			i.reading.Store(false)
			enqueue(queue)
		}()
		return nil
	})
}

// Unavailable returns why the sources cannot say what belongs to the node of req, or nil.
func (i *Inventory) Unavailable(ctx context.Context, req *csr.Request) error {
	if i.cluster == nil {
		return errNotRunning
	}
	_, err := i.sources.Lookup(ctx, req.NodeName(), req)
	return err
}

// Unwatched reports whether node has a Lease that has not been observed long enough. A process that has run longer may
// know more.
func (i *Inventory) Unwatched(node string) bool {
	if i.leases == nil {
		return false
	}
	life, renewed, err := i.leases.Of(node)
	return err == nil && life == nodeidentity.Unknown && !renewed.IsZero()
}

// compareEvery is the pause between two comparisons of all Nodes. mostReported bounds the Events about Nodes that a
// comparison leaves out.
const (
	compareEvery = 10 * time.Second
	mostReported = 20
)

// nodeComparison reports the Nodes that are left out of the comparison, even if they request nothing.
type nodeComparison struct {
	inventory *Inventory
	reporter  *report.Reporter
	log       logr.Logger

	reported map[string]bool // node names of the last comparison
}

// Start compares all Nodes repeatedly until ctx ends. It runs only on the leader.
func (c *nodeComparison) Start(ctx context.Context) error {
	ticker := time.NewTicker(compareEvery)
	defer ticker.Stop()
	defer nodesLeftOut.Set(0) // the next leader counts the Nodes
	for {
		c.compare(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

var _ manager.Runnable = &nodeComparison{}

// compare counts the Nodes that are left out, and reports those that the last comparison did not leave out.
func (c *nodeComparison) compare(ctx context.Context) {
	found, err := c.inventory.leftOut(ctx)
	if err != nil {
		return // requests that need the same data report the cause
	}
	nodesLeftOut.Set(float64(len(found)))
	now := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		now[name] = true
		if c.reported[name] || len(now) > mostReported {
			continue
		}
		message := "the names and addresses that this Node reports are left out of the comparison with other Nodes: " +
			found[name].String() + "; find out what runs on it"
		c.log.Error(nil, "A Node reports names or addresses of other Nodes", "node", name, "message", message)
		if node, err := c.inventory.cluster.Node(name); err == nil && node != nil {
			about := &corev1.Node{}
			about.Name, about.UID = node.Name, node.UID
			c.reporter.Object(about, corev1.EventTypeWarning, "Approve", "SANContested", message)
		}
	}
	c.reported = now
}

// leftOut returns the Nodes that are left out of the comparison. It does not ask sources that may be slow.
func (i *Inventory) leftOut(ctx context.Context) (map[string]*inventory.LeftOut, error) {
	nodes, err := i.cluster.Nodes()
	if err != nil {
		return nil, err
	}
	var quick inventory.Sources
	for n, source := range i.sources {
		if i.sources[n : n+1].NamesOwners(1) {
			quick = append(quick, source)
		}
	}
	known, many := map[string]inventory.Found{}, map[san.SAN][]string{}
	ownership := &inventory.Ownership{
		Reported: i.cluster.Reported,
		Holders: func(name san.SAN) ([]string, error) {
			if few, found := many[name]; found { // all Nodes may report the same address
				return few, nil
			}
			holders, err := i.cluster.Holders(name)
			if len(holders) > 2 {
				holders = slices.Clone(holders[:3])
				many[name] = holders
			}
			return holders, err
		},
		Claim: func(node string, name san.SAN) (inventory.Claim, error) {
			found, asked := known[node]
			if !asked {
				var err error
				if found, err = quick.Claimant(ctx, node, len(quick), nil); err != nil {
					return inventory.Claim{}, err
				}
				known[node] = found
			}
			return found.Claim(name), nil
		},
	}
	found := map[string]*inventory.LeftOut{}
	for _, node := range nodes {
		if out, err := ownership.LeftOut(node); err == nil && out != nil {
			found[node] = out
		}
	}
	return found, ctx.Err()
}
